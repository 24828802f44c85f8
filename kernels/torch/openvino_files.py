"""OpenVINO files that take any batch and any time."""

import tempfile
from pathlib import Path

from keras_linrec.kernels.torch.onnx_files import onnx_of_any_size


def export_openvino(
    export, model, filepath, verbose=True, input_signature=None, **options
):
    """`model.export(filepath, format="openvino")`, by way of an ONNX file.

    Keras (3.12 to 3.15) traces the model, which unrolls loops over time at the
    traced length, takes ten times as long, and fixes the batch of some layers.

    Args:
        export: `keras.Model.export` as Keras has it.
        model: the model.
        filepath: the path of the file, which ends with `.xml`.
        verbose: as in Keras.
        input_signature: as in Keras.
        **options: further arguments of `export`.
    """
    if not str(filepath).endswith(".xml"):
        raise ValueError(
            "`filepath` should end with '.xml' for format='openvino'. "
            f"Received: filepath={filepath}"
        )
    import openvino

    with tempfile.TemporaryDirectory() as folder, onnx_of_any_size():
        path = Path(folder) / "model.onnx"
        export(
            model,
            path,
            format="onnx",
            verbose=False,
            input_signature=input_signature,
            **options,
        )
        openvino.save_model(
            openvino.convert_model(path), filepath, compress_to_fp16=False
        )
    if verbose:
        print(f"Saved OpenVINO IR at '{filepath}'.")
