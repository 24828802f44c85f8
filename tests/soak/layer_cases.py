"""One layer with random arguments, against its definition in many ways."""

import tempfile
from pathlib import Path

import keras
import numpy as np
from definitions.ldstack import network
from support.defined_calls import Call
from support.defined_calls import defined_call
from support.drawn_cases import rounded
from support.drawn_layers import FEATURES
from support.drawn_layers import chance
from support.drawn_layers import draw_common
from support.drawn_layers import draw_layer
from support.drawn_layers import pick
from support.programs import BACKEND
from support.programs import program
from support.threads import in_threads
from support.units import weights_of

from soak.report import require_in_range
from soak.settings import draw_inputs
from soak.settings import draw_setting
from soak.settings import number
from soak.settings import numbers
from soak.settings import usable_kernels
from soak.shared_programs import Programs
from soak.tolerances import DRAWS
from soak.tolerances import MANY_DRAWS
from soak.tolerances import OUTPUT_ROUNDINGS
from soak.tolerances import Bounded
from soak.tolerances import bounded
from soak.tolerances import fits

LENGTHS = (1, 2, 3, 7, 16, 33, 64, 130)
ROUNDS = 3


class LayerCase:
    """A layer, a call of it, and what the definition gives."""

    def __init__(self, generator):
        self.generator = generator
        self.drawn = draw_common(generator, draw_layer(generator))
        self.setting = draw_setting(generator)
        with self.setting.scope():
            self.layer = self.drawn.built(
                int(generator.integers(2**31)), dtype=self.setting.policy
            )
            self.call = draw_call(generator, self)
        self.expected = self.define()
        self.programs = Programs()

    def __str__(self):
        marks = ", ".join(self.call.options) or "nothing else"
        return (
            f"{self.drawn}\n{self.setting}\n"
            f"inputs {self.call.inputs.shape} and {marks}"
        )

    @property
    def state_shapes(self):
        if self.drawn.wrapper is None:
            return self.layer.state_shapes
        return 2 * self.layer.forward_layer.state_shapes

    def define(self, draws=DRAWS):
        """The definition's results, with their bounds."""
        layers = [self.layer]
        if self.drawn.wrapper is not None:
            layers = [self.layer.forward_layer, self.layer.backward_layer]
        weights = [weights_of(layer) for layer in layers]
        names = [(i, name) for i, part in enumerate(weights) for name in part]
        values = [weights[i][name] for i, name in names]
        states = self.call.states

        def reference(arguments):
            moved = [{} for _ in layers]
            for (i, name), value in zip(names, arguments):
                moved[i][name] = value
            inputs, *rest = arguments[len(names) :]
            return defined_call(
                self.drawn,
                moved[0] if len(moved) == 1 else moved,
                self.call._replace(
                    inputs=inputs, states=None if states is None else rest
                ),
            )

        return bounded(
            reference,
            [*values, self.call.inputs, *(states or [])],
            self.generator,
            self.setting.recurrence,
            self.setting.outputs,
            output_count(self.drawn),
            max(amplification(self.drawn, part) for part in weights),
            least_scale(self.drawn),
            output_roundings(self.drawn, self.call),
            draws,
        )

    def given(self):
        """The call's arguments in the dtypes of the layer's inputs."""
        wide = self.setting.recurrence
        options = self.call.options
        for name in ("initial_state", "time_deltas"):
            if name in options:
                options[name] = keras.tree.map_structure(
                    lambda part: part.astype(wide), options[name]
                )
        tensor = keras.ops.cast(
            keras.ops.convert_to_tensor(self.call.inputs.astype(wide)),
            self.setting.outputs,
        )
        return {"inputs": tensor, **options}

    def answer(self, layer=None, mode=None):
        """The results of the whole call."""
        layer, mode = layer or self.layer, mode or self.setting.usual_mode

        def run(given):
            given = dict(given)
            return layer(given.pop("inputs"), **given)

        return numbers(self.programs.of(run, layer, mode)(self.given()))


def amplification(drawn, weights):
    """By how much modal coordinates amplify the roundings of a companion form.

    Its states pass through the eigenvectors of A, whose condition number
    `docs/limits` names.
    """
    if drawn.form.get("basis") != "companion":
        return 1.0
    transition, *_ = network(weights, "companion")
    return np.linalg.cond(np.linalg.eig(transition)[1])


def output_count(drawn):
    """Results that are outputs, before those that are states."""
    apart = drawn.wrapper is not None and drawn.merge_mode is None
    return 2 if apart else 1


def least_scale(drawn):
    """The size of what activations round.

    TensorFlow's ELU is exp(x) - 1, which `docs/limits` names.
    """
    has_elu = drawn.form.get("activation") == "elu"
    return 1.0 if BACKEND == "tensorflow" and has_elu else 0.0


def output_roundings(drawn, call):
    """As many as there are steps where nothing is forgotten.

    The rounding of an orthogonal matrix makes states longer at every step. No
    move of its reflectors does.
    """
    if drawn.name != "orthogonal_rnn":
        return OUTPUT_ROUNDINGS
    return max(OUTPUT_ROUNDINGS, call.inputs.shape[1])


def draw_call(generator, case):
    batch, time = int(generator.integers(1, 5)), pick(generator, LENGTHS)
    shape = (batch, time)
    drawn = case.drawn
    takes_marks = drawn.wrapper is not keras.layers.Bidirectional
    takes_deltas = takes_marks and drawn.unit.takes_time_deltas
    states = mask = resets = deltas = None
    if chance(generator, 0.5):
        # Keras' wrapper casts states to the compute dtype.
        dtype = "float32" if takes_marks else case.setting.outputs
        states = [
            rounded(generator.standard_normal((batch, *sizes)), dtype)
            for sizes in case.state_shapes
        ]
    if chance(generator, 0.5):
        mask = generator.random(shape) < pick(generator, [0.1, 0.7, 0.95])
    # A layer that reads both ways takes no mask beside resets if it returns its
    # states.
    takes_resets = mask is None or not drawn.form.get("bidirectional")
    if takes_marks and takes_resets and chance(generator, 0.4):
        resets = generator.random(shape) < pick(generator, [0.03, 0.3])
    if takes_deltas and chance(generator, 0.4):
        deltas = generator.uniform(0, 2, shape)
        deltas = deltas.astype("float32").astype("float64")
    inputs = draw_inputs(generator, (*shape, FEATURES), case.setting)
    return Call(inputs, states, mask, resets, deltas)


def run(generator, report):
    """Draw a case, and check it."""
    case = LayerCase(generator)
    report.describe(case)
    require_in_range(case.expected, case.setting)
    checks = [check_kernels, check_file, check_threads]
    if case.drawn.streams:
        checks += [check_stream, check_stateful]
    with case.setting.scope():
        first = case.answer(mode=case.setting.mode)
        if not all(map(fits, first, case.expected)):
            case.expected = case.define(MANY_DRAWS)
        report.compare("definition", first, case.expected)
        for index in generator.choice(len(checks), size=2, replace=False):
            checks[index](case, report)


def check_kernels(case, report):
    """Every other kernel gives the same."""
    for name in usable_kernels():
        with case.setting._replace(kernel=name).scope():
            report.compare("kernels", case.answer(), case.expected)


def check_file(case, report):
    """The layer in a model that was saved and loaded gives the same."""
    inputs = keras.Input((None, FEATURES), dtype=case.setting.outputs)
    model = keras.Model(inputs, case.layer(inputs))
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "model.keras")
        loaded = keras.models.load_model(Path(folder) / "model.keras")
    report.compare("file", case.answer(loaded.layers[-1]), case.expected)


def check_threads(case, report):
    """Threads that call one layer at once get what a single one gets."""

    def work(_):
        return [case.answer() for _ in range(ROUNDS)]

    for results in in_threads(work):
        for got in results:
            report.compare("threads", got, case.expected)


def check_stream(case, report):
    """Chunks and single steps with states in between give the whole."""
    pieces = draw_pieces(case)
    layer = case.layer

    def run(given):
        given = dict(given)
        inputs = given.pop("inputs")
        states = given.pop("initial_state", None)
        if states is None:
            states = layer.get_initial_state(len(case.call.inputs))
        outputs = []
        for first, end, single in pieces:
            part = slice(first, end)
            options = {name: marks[:, part] for name, marks in given.items()}
            if single:
                options = {name: part[:, 0] for name, part in options.items()}
                output, states = layer.step(inputs[:, first], states, **options)
                output = keras.ops.expand_dims(output, 1)
            else:
                output, states = layer.call_with_states(
                    inputs[:, part], states, **options
                )
            outputs.append(output)
        return [keras.ops.concatenate(outputs, axis=1), *states]

    got = numbers(program(run, case.setting.usual_mode)(case.given()))
    report.compare("stream", *where_unmasked(case, got))


def draw_pieces(case):
    """Up to five pieces of the sequence: (first, end, as a single step)."""
    time = case.call.inputs.shape[1]
    cuts = case.generator.integers(1, time + 1, size=4)
    ends = sorted({*cuts.tolist(), time})
    marked = case.call.mask is not None or case.call.resets is not None
    return [
        (first, end, end == first + 1 and not marked)
        for first, end in zip([0, *ends], ends)
    ]


def where_unmasked(case, got):
    """Results and expected ones with zeros at masked steps.

    There a chunk repeats its own outputs only.
    """
    if case.call.mask is None:
        return got, case.expected
    mask = case.call.mask[:, :, None]
    first, *rest = case.expected
    return (
        [got[0] * mask, *got[1:]],
        [Bounded(first.value * mask, first.bound), *rest],
    )


def check_stateful(case, report):
    """A stateful layer that gets two halves gives the whole."""
    batch, time = case.call.inputs.shape[:2]
    layer = case.drawn.make(dtype=case.setting.policy, stateful=True)
    layer.build((batch, None, FEATURES))
    for weight, value in zip(layer.weights, case.layer.weights):
        weight.assign(number(value))
    given = case.given()
    inputs = given.pop("inputs")
    states = given.pop("initial_state", None)
    if states is not None:
        layer.reset_state()
    outputs = []
    half = max(1, time // 2)
    for part in (slice(0, half), slice(half, time)):
        if part.start == part.stop:
            continue
        options = {name: marks[:, part] for name, marks in given.items()}
        if states is not None:
            options["initial_state"] = states
        output, *finals = layer(inputs[:, part], **options)
        states = None
        outputs.append(number(output))
    got = [np.concatenate(outputs, axis=1), *numbers(finals)]
    report.compare("stateful", *where_unmasked(case, got))
