"""A model of random layers, trained and then used in every way.

The reference is the same model with the trained weights in float64, on the
plain kernel.
"""

import tempfile
from pathlib import Path

import keras
import numpy as np
from support.drawn_layers import FEATURES
from support.drawn_layers import chance
from support.drawn_layers import count
from support.drawn_layers import pick
from support.programs import BACKEND
from support.programs import COMPILED
from support.programs import EAGER
from support.programs import program
from support.threads import in_threads
from support.units import randomise

from keras_linrec import export_step
from soak.drawn_models import draw_model
from soak.report import OutOfRange
from soak.report import require_in_range
from soak.settings import draw_inputs
from soak.settings import draw_setting
from soak.settings import number
from soak.settings import numbers
from soak.shared_programs import Programs
from soak.tolerances import Bounded
from soak.twins import defined_by_twin

LENGTHS = (3, 7, 16, 33)
EXPORT_FORMATS = {"tensorflow": "tf_saved_model", "torch": "onnx"}
# PyTorch's exporter unrolls a nonlinear recurrence, in minutes for 33 steps.
LONGEST_EXPORT = 7


class ModelCase:
    """A model, its inputs, and what it should give for them."""

    def __init__(self, generator):
        self.generator = generator
        self.drawn = draw_model(generator)
        self.setting = draw_setting(generator)
        self.shape = (count(generator, 1, 4), pick(generator, LENGTHS))
        self.inputs = draw_inputs(
            generator, (*self.shape, FEATURES), self.setting
        )
        self.mask = None
        if chance(generator, 0.4):
            self.mask = generator.random(self.shape) < 0.7
        with self.setting.scope():
            self.model = randomise(self.drawn.make(self.setting.policy))
        self.programs = Programs()

    def __str__(self):
        mask = "" if self.mask is None else " with a mask"
        return f"{self.drawn}\n{self.setting}\ninputs {self.inputs.shape}{mask}"

    @property
    def options(self):
        return {} if self.mask is None else {"mask": self.mask}

    @property
    def rounded_to(self):
        """The dtype that the outputs are rounded to."""
        outputs = self.setting.outputs
        if BACKEND == "jax" and outputs == "float64":
            # Keras' normalisations compute it in float32 (`docs/limits`),
            # and XLA rounds them differently in another program.
            return "float32"
        return outputs

    @property
    def where(self):
        """Where outputs are specified: a factor of 0 or 1, or 1."""
        has_time = self.drawn.output_has_time
        shortens = self.drawn.arguments.get("pool_size", 1) > 1
        if self.mask is None or not has_time or shortens:
            return 1.0
        return self.mask[:, :, None]

    def train(self):
        """Train a few steps; the loss stays finite, and weights move.

        A loss of zero moves none, such as that of a row that is masked
        throughout.
        """
        before = [number(weight) for weight in self.model.trainable_variables]
        with self.setting.scope():
            inputs = self.inputs.astype(self.setting.recurrence)
            targets = np.zeros(self.model.compute_output_shape(inputs.shape))
            # Where batch normalization turns a single step into zeros, equal
            # targets would leave a softmax where it is.
            targets[..., 0] = 1.0
            self.model.compile(
                keras.optimizers.SGD(1e-3, clipnorm=1.0),
                "mse",
                jit_compile=BACKEND == "jax",
                run_eagerly=BACKEND == "tensorflow"
                and self.setting.mode == EAGER,
            )
            history = self.model.fit(
                inputs,
                targets.astype("float32"),
                batch_size=len(inputs),
                epochs=2,
                verbose=0,
            )
        losses = history.history["loss"]
        if not np.isfinite(losses).all():
            raise OutOfRange("the loss is not finite")
        if not any(losses):
            return True
        after = [number(weight) for weight in self.model.trainable_variables]
        return any((one != other).any() for one, other in zip(before, after))

    def define(self):
        """What the model gives in float64 on the plain kernel."""
        (result,) = defined_by_twin(
            self.model,
            self.drawn.make,
            self.inputs,
            self.generator,
            # Position-wise layers compute in the policy's dtype.
            self.rounded_to,
            **self.options,
        )
        return [result._replace(value=result.value * self.where)]

    def answer(self, model=None):
        model = model or self.model

        def run(given):
            return model(given, **self.options)

        inputs = self.inputs.astype(self.setting.recurrence)
        run = self.programs.of(run, model, self.setting.usual_mode)
        outputs = run(keras.ops.convert_to_tensor(inputs))
        return [number(outputs) * self.where]


def run(generator, report):
    """Draw a case, train it, and check it."""
    case = ModelCase(generator)
    report.describe(case)
    # Loss scaling may skip the first steps.
    moved = case.train() or case.setting.policy == "mixed_float16"
    report.require("training", moved, "no weight has moved")
    case.expected = case.define()
    require_in_range(case.expected, case.setting)
    with case.setting.scope():
        report.compare("model", case.answer(), case.expected)
        check_file(case, report)
        check_threads(case, report)
        if case.drawn.streams and case.mask is None:
            check_stream(case, report)
        if is_exportable(case) and chance(generator, 0.3):
            check_export(case, report)


def check_file(case, report):
    with tempfile.TemporaryDirectory() as folder:
        case.model.save(Path(folder) / "model.keras")
        loaded = keras.models.load_model(Path(folder) / "model.keras")
    report.compare("model file", case.answer(loaded), case.expected)


def check_threads(case, report):
    for got in in_threads(lambda _: case.answer()):
        report.compare("model threads", got, case.expected)


def check_stream(case, report):
    """`export_step`, one step after another, gives the whole."""
    step = export_step(case.model)
    inputs = case.inputs.astype(case.setting.recurrence)
    # On JAX a program, which all steps share.
    run = program(step, COMPILED if BACKEND == "jax" else EAGER)
    states, outputs = step.initial_states(len(inputs)), []
    for now in np.moveaxis(inputs, 1, 0):
        output, *states = run([now, *states])
        outputs.append(number(output))
    got = np.stack(outputs, 1) if case.drawn.output_has_time else outputs[-1]
    report.compare("step model", [got], case.expected)


def is_exportable(case):
    # ONNX has no inverse of a matrix.
    inverts = any(unit.name == "ldstack" for unit in case.drawn.units)
    return (
        BACKEND in EXPORT_FORMATS
        and not (BACKEND == "torch" and inverts)
        and case.setting.policy == "float32"
        and case.mask is None
        and case.shape[1] <= LONGEST_EXPORT
    )


def check_export(case, report):
    """The exported file, without the package, gives the same."""
    inputs = case.inputs.astype("float32")
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "model.onnx")
        case.model.export(
            file,
            format=EXPORT_FORMATS[BACKEND],
            input_signature=[keras.InputSpec("float32", inputs.shape)],
            verbose=False,
        )
        got = run_exported(file, inputs)
    expected = [Bounded(part.value, 2 * part.bound) for part in case.expected]
    report.compare("export", numbers([got]), expected)


def run_exported(file, inputs):
    if BACKEND == "tensorflow":
        import tensorflow as tf

        # Its variables live as long as it does.
        loaded = tf.saved_model.load(file)
        return loaded.serve(inputs)
    import onnxruntime

    session = onnxruntime.InferenceSession(file)
    name = session.get_inputs()[0].name
    return session.run(None, {name: inputs})[0]
