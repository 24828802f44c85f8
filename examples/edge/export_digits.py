"""Write a model of spoken digits as files for small machines.

Under PyTorch the files are for ONNX Runtime, under TensorFlow for LiteRT:

    export KERAS_BACKEND=torch  # or tensorflow
    python examples/edge/export_digits.py docs/results/speech-rotrnn.keras

writes `speech-rotrnn-block.onnx` in float32, and with int8 weights
`speech-rotrnn-block-int8.onnx`. With `--data`, the recordings of the Free
Spoken Digit Dataset, activations are int8 too, within the range that they have
in some of the training: in `-int8-maps`, for ONNX alone, those of the products
with matrices, and in `-int8-all` those of the recurrence as well.
"""

import argparse
import sys
import warnings
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from common import add_output
from common import make_folder
from common import require_archive

# As many blocks of training recordings give the ranges of the activations.
CALIBRATION_RECORDINGS = 20
CALIBRATION_STRIDE = 5


def main(arguments=None):
    options = parse(arguments)
    import keras
    from forms import FORMS
    from forms import read

    require_archive(options.model, "a model that Keras saved")
    make_folder(options.output)
    sounds = calibration_sounds(options.data) if options.data else ()
    write = WRITERS[keras.backend.backend()]
    for form in options.form:
        # Each from the file: a form changes how the units run.
        model = FORMS[form](read(options.model))
        stem = options.output / f"{options.model.stem}-{form}"
        for path in write(model, str(stem), sounds):
            print(f"{path}: {Path(path).stat().st_size:,} bytes", flush=True)


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, metavar="FILE.keras")
    parser.add_argument(
        "--form",
        nargs="+",
        choices=("block", "step"),
        default=["block"],
        help="what a call reads: 64 samples or one (default: block)",
    )
    parser.add_argument(
        "--data", type=Path, metavar="DATA", help="for int8 activations"
    )
    add_output(parser, "the files")
    return parser.parse_args(arguments)


def calibration_sounds(path):
    """Some of the recordings that the model was trained on."""
    from types import SimpleNamespace

    from recipes.data import speech

    sounds, _ = speech(SimpleNamespace(data=path), 0).train
    stride = len(sounds) // CALIBRATION_RECORDINGS
    return [sound[:, 0] for sound in sounds[::stride]]


def feeds_of(recorder, answers, sounds):
    """What a recorder is given for some blocks of some sounds."""
    for sound in sounds:
        for place, _ in enumerate(answers(recorder, sound)):
            if place % CALIBRATION_STRIDE == 0:
                yield recorder.feeds


# ONNX.


def write_onnx(model, stem, sounds):
    import onnx
    from forms import signature
    from onnxruntime.quantization import quantize_dynamic

    plain = f"{stem}.onnx"
    model.export(
        plain,
        format="onnx",
        verbose=False,
        input_signature=signature(model),
    )
    content = onnx.load(plain)
    del content.graph.value_info[:]
    onnx.save(content, plain)
    yield plain
    quantize_dynamic(plain, f"{stem}-int8.onnx", per_channel=True)
    yield f"{stem}-int8.onnx"
    if not sounds:
        return
    maps = ["MatMul", "Gemm"]
    for name, kinds in {"maps": maps, "all": None}.items():
        quantize_all(plain, f"{stem}-int8-{name}.onnx", kinds, sounds)
        yield f"{stem}-int8-{name}.onnx"


def quantize_all(plain, path, kinds, sounds):
    """Weights and activations of some kinds of nodes, or of all kinds."""
    from digits_onnx import load
    from onnxruntime.quantization import CalibrationDataReader
    from onnxruntime.quantization import QuantType
    from onnxruntime.quantization import quantize_static

    class Reader(CalibrationDataReader):
        def __init__(self):
            self.feeds = onnx_feeds(load(plain), sounds)

        def get_next(self):
            return next(self.feeds, None)

    quantize_static(
        plain,
        path,
        Reader(),
        op_types_to_quantize=kinds,
        per_channel=True,
        weight_type=QuantType.QInt8,
        activation_type=QuantType.QInt8,
    )


def onnx_feeds(session, sounds):
    """The inputs of some blocks of some sounds, states included."""
    from digits_onnx import answers

    class Recorder:
        """A session that keeps what it is given."""

        get_inputs = session.get_inputs

        def run(self, names, feeds):
            self.feeds = feeds
            return session.run(names, feeds)

    return feeds_of(Recorder(), answers, sounds)


# LiteRT.


def write_litert(model, stem, sounds):
    import tensorflow as tf
    from forms import signature

    def write(path, **arguments):
        model.export(
            path,
            format="litert",
            verbose=False,
            input_signature=signature(model),
            **arguments,
        )
        return path

    smaller = {"optimizations": [tf.lite.Optimize.DEFAULT]}
    plain = write(f"{stem}.tflite")
    yield plain
    yield write(f"{stem}-int8.tflite", **smaller)
    if not sounds:
        return
    yield write(
        f"{stem}-int8-all.tflite",
        representative_dataset=lambda: litert_feeds(plain, sounds),
        **smaller,
    )


def litert_feeds(plain, sounds):
    from digits_litert import answers
    from digits_litert import load

    model = load(plain)

    class Recorder:
        """A model that keeps what it is given."""

        get_input_details = model.get_input_details

        def __call__(self, **feeds):
            self.feeds = feeds
            return model(**feeds)

    return feeds_of(Recorder(), answers, sounds)


WRITERS = {"torch": write_onnx, "tensorflow": write_litert}


if __name__ == "__main__":
    warnings.filterwarnings("ignore", category=FutureWarning)
    main()
