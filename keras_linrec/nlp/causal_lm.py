"""A language model that generates from a state of constant size."""

from functools import partial
from threading import Lock
from typing import Any

import keras
import numpy as np
from keras import ops
from keras_hub import samplers
from keras_hub.models import CausalLM
from keras_hub.samplers import BeamSampler
from keras_hub.samplers import ContrastiveSampler
from keras_hub.samplers import SpeculativeSampler

from keras_linrec import types
from keras_linrec.nlp.backbone import LinRecBackbone
from keras_linrec.nlp.causal_lm_preprocessor import LinRecCausalLMPreprocessor
from keras_linrec.nlp.task import LinRecTask
from keras_linrec.nlp.task import require_parts
from keras_linrec.validation import require_bool
from keras_linrec.validation import require_choice
from keras_linrec.validation import require_count

SCORING_MODES = ("logits", "loss")

_MAKING = Lock()

# The logit of a token that cannot be: its probability is 0 in float32, at any
# temperature in use, and no sampler meets an infinity by it.
_NEVER = -1e9


@keras.saving.register_keras_serializable("keras_linrec")
class LinRecCausalLM(LinRecTask, CausalLM):
    """A language model on a `LinRecBackbone`.

        logits = token_embedding(backbone(inputs), reverse=True)

    `generate()` computes the prompts in parallel, whatever their lengths, and
    from there on one token at a time from the units' states: neither time nor
    memory of a token grows with the text before it. Its samplers are those of
    `keras_hub.samplers` that read the next token's probabilities: greedy,
    random, top-k, top-p and beam search. A row of a batch gives what it would
    give alone: it ends at its stop token or at `max_length` tokens, and a beam
    that has ended keeps its score.

    JAX and TensorFlow compile a program for every shape. The lengths of
    prompts and of what is generated are therefore rounded up to powers of two
    internally, so that few programs are needed.

    Args:
        backbone: a `LinRecBackbone` whose units read forwards only.
        preprocessor: a `LinRecCausalLMPreprocessor`, packed if the backbone
            is; or `None`, for inputs that are tokens already. Defaults to
            `None`.
        **kwargs: `name`, `compile`.

    Call arguments:
        inputs: what the backbone takes.

    Output shape:
        (batch, time, vocabulary_size), logits.

    Raises:
        ValueError: for a backbone that does not read forwards alone, has fewer
            tokens than the tokenizer, or is packed where the preprocessor is
            not, or the other way round; in `compile()`, for a sampler that
            looks back at more than the last state or returns several texts a
            row; in `generate()`, for token inputs with an empty row, or with
            padding before a token.

    Example:

    >>> import numpy as np
    >>> from keras_linrec import nlp
    >>> backbone = nlp.LinRecBackbone(
    ...     vocabulary_size=259,
    ...     num_layers=1,
    ...     hidden_dim=8,
    ...     intermediate_dim=16,
    ...     unit_arguments={"state_size": 8, "num_heads": 2},
    ... )
    >>> preprocessor = nlp.LinRecCausalLMPreprocessor(
    ...     nlp.LinRecByteTokenizer(), sequence_length=16
    ... )
    >>> model = nlp.LinRecCausalLM(backbone, preprocessor)
    >>> model.compile("adamw", sampler="greedy")
    >>> history = model.fit(["To be", "or not"], verbose=0)
    >>> texts = model.generate(["To", "or n"], max_length=8)
    >>> [text[:2] for text in texts]
    ['To', 'or']
    """

    backbone_cls = LinRecBackbone
    preprocessor_cls = LinRecCausalLMPreprocessor

    def __init__(self, backbone: Any, preprocessor: Any = None, **kwargs: Any):
        require_parts(backbone, preprocessor)
        _require_streaming(backbone)
        is_packed = getattr(preprocessor, "packed", backbone.packed)
        if is_packed != backbone.packed:
            raise ValueError(
                "`backbone` and `preprocessor` should be packed both, or "
                f"neither. Received: backbone.packed={backbone.packed}, "
                f"preprocessor.packed={is_packed}"
            )
        self.backbone = backbone
        self.preprocessor = preprocessor
        inputs = backbone.input
        outputs = backbone.token_embedding(backbone(inputs), reverse=True)
        super().__init__(inputs=inputs, outputs=outputs, **kwargs)

    def compile(
        self,
        optimizer="auto",
        loss="auto",
        *,
        weighted_metrics="auto",
        sampler="top_k",
        **kwargs,
    ):
        """Configure training and generation, as `keras_hub.models.CausalLM`.

        Args:
            optimizer: `"auto"`, Adam at 2e-5, or what Keras takes.
            loss: `"auto"`, the crossentropy of the next token, or what Keras
                takes.
            weighted_metrics: `"auto"`, the accuracy of the next token, or
                what Keras takes.
            sampler: a name or an object of `keras_hub.samplers`. Defaults to
                `"top_k"`.
            **kwargs: those of `keras.Model.compile`.

        Raises:
            ValueError: for a sampler that looks back at more than the last
                state, or returns several texts a row.
        """
        sampler = samplers.get(sampler)
        _require_by_token(sampler)
        super().compile(
            optimizer,
            loss,
            weighted_metrics=weighted_metrics,
            sampler=sampler,
            **kwargs,
        )

    def get_compile_config(self):
        config = super().get_compile_config()
        if config:
            config["sampler"] = samplers.serialize(self.sampler)
        return config

    # One pass with states.

    def get_initial_cache(self, batch_size):
        """The states before the first token: a list of lists of zeros.

        Args:
            batch_size: integer, the number of rows.
        """
        return self.backbone.get_initial_state(batch_size)

    def call_with_cache(
        self, token_ids, cache, padding_mask=None, constants=None
    ):
        """A call that goes on from earlier tokens.

        One token a row costs the same whatever came before; several are
        computed in parallel.

        Args:
            token_ids: integers, (batch, time).
            cache: from `get_initial_cache` or from here. It has one size, in
                float32 (float64 under a float64 policy).
            padding_mask: (batch, time), true where there is a token, in any
                pattern. Defaults to `None`, everywhere.
            constants: for one token a row, `backbone.step_constants()` of the
                weights as they are. Defaults to `None`: computed here.

        Returns:
            `(logits, hidden_states, cache)`: (batch, time, vocabulary_size),
            (batch, time, hidden_dim), and the states after these tokens.
            Where there is no token, the hidden states are those of the token
            before it in this call, or zeros if there is none.
        """
        if token_ids.shape[1] == 1 and padding_mask is None:
            hidden_states, cache = self.backbone.step(
                token_ids[:, 0], cache, constants
            )
            hidden_states = ops.expand_dims(hidden_states, 1)
        else:
            hidden_states, cache = self.backbone.call_with_states(
                token_ids, cache, padding_mask
            )
        logits = self.backbone.token_embedding(hidden_states, reverse=True)
        return logits, hidden_states, cache

    # Generation.

    def generate(
        self,
        inputs: types.Tensor,
        max_length: int | None = None,
        stop_token_ids: Any = "auto",
        strip_prompt: bool = False,
    ):
        """Continue prompts.

        Args:
            inputs: a string, or a list, tuple or array of strings; for a model
                without a preprocessor a dictionary of `token_ids`, integers
                (batch, time), and `padding_mask`, of the same shape, true at
                the tokens of the prompt, which are the first of each row. Or a
                `tf.data.Dataset` of these. An empty string is continued from
                the start token; an empty list gives an empty list.
            max_length: integer, the length of prompt and continuation in
                tokens, the start token included. A longer prompt is cut to it.
                Defaults to `None`, the preprocessor's `sequence_length`. It
                does not apply to tokens, whose own length counts.
            stop_token_ids: the tokens that end a text, a sequence of integers;
                `None` for no such token; or `"auto"`, the default, for the
                tokenizer's end token, which needs a preprocessor.
            strip_prompt: whether to return only what follows the prompts.
                Defaults to `False`.

        Returns:
            A string for a string, else a list of strings; for tokens the same
            dictionary with the continuations.

        Raises:
            ValueError: for inputs or an argument other than these, for
                `stop_token_ids="auto"` without a preprocessor, and for token
                inputs with an empty row, or with padding before a token.
        """
        require_count("max_length", max_length, optional=True)
        require_bool("strip_prompt", strip_prompt)
        stop_token_ids = _checked_stops(
            stop_token_ids, self.backbone.vocabulary_size
        )
        if self.preprocessor is not None and _is_sequence(inputs):
            _require_texts(inputs)
            if not len(inputs):
                return []
        return super().generate(
            inputs, max_length, stop_token_ids, strip_prompt
        )

    def make_generate_function(self):
        # KerasHub sets `generate_function` to an unfinished one first, which
        # another thread must not see.
        with _MAKING:
            return partial(self._generate, super().make_generate_function())

    def _generate(self, compiled, inputs, stop_token_ids=None):
        """Tokens of prompts, padded on the right, to tokens of texts."""
        _require_tokens(inputs, self.backbone.vocabulary_size)
        token_ids = ops.cast(inputs["token_ids"], "int32")
        padding_mask = ops.cast(inputs["padding_mask"], "bool")
        lengths = _lengths(padding_mask)
        max_length = token_ids.shape[1]
        room = max_length - lengths
        if room.max(initial=0) == 0:
            return {"token_ids": token_ids, "padding_mask": padding_mask}

        # The last token of a prompt is the first that generation steps over.
        width = self._rounded(max(lengths.max() - 1, 1), max_length)
        wanted = int(room.max())
        slots = self._rounded(wanted, max_length)
        last = ops.take_along_axis(token_ids, lengths[:, None] - 1, axis=1)
        compiled_inputs = {
            "token_ids": token_ids[:, :width],
            "padding_mask": np.arange(width) < lengths[:, None] - 1,
            "last_token_ids": last,
            "room": room,
            "slots": np.zeros(slots, "int32"),
            "wanted": np.array(wanted, "int32"),
        }
        compiled_inputs = {
            name: ops.convert_to_tensor(value)
            for name, value in compiled_inputs.items()
        }
        outputs = compiled(compiled_inputs, stop_token_ids=stop_token_ids)

        # Rows end their prompts together within, and apart outside.
        position = np.arange(max_length) - lengths[:, None]
        index = np.clip(position, 0, wanted - 1) + slots - wanted

        def spread(generated, prompts):
            generated = ops.take_along_axis(generated, index, axis=1)
            return ops.where(position < 0, prompts, generated)

        return {
            "token_ids": spread(outputs["token_ids"], token_ids),
            "padding_mask": spread(outputs["padding_mask"], padding_mask),
        }

    def _rounded(self, count, limit):
        """A power of two, for what is compiled by shapes; or the count."""
        if keras.backend.backend() == "torch" or self.run_eagerly:
            return int(count)
        return min(1 << (int(count) - 1).bit_length(), limit)

    def generate_step(self, inputs, stop_token_ids=None):
        """What `generate()` compiles: prompts to what follows them.

        Args:
            inputs: dictionary of
                `token_ids`, (batch, width), the prompts without their last
                tokens, and `padding_mask`, which is true there;
                `last_token_ids`, (batch, 1);
                `room`, (batch,), how many tokens each row is to have at most;
                `slots`, of the shape (slots,), which is their number;
                `wanted`, a scalar, how many of the slots, the last ones, are
                to be filled.
            stop_token_ids: the tokens that end a row, or `None`.

        Returns:
            A dictionary of `token_ids` and `padding_mask`, (batch, slots);
            in a row, tokens up to the first that stops it count.
        """
        token_ids, room = inputs["token_ids"], inputs["room"]
        batch_size, slots = ops.shape(token_ids)[0], inputs["slots"].shape[0]
        start = 1 + slots - inputs["wanted"]
        _, states = self.backbone.call_with_states(
            token_ids,
            self.get_initial_cache(batch_size),
            inputs["padding_mask"],
        )
        constants = self.backbone.step_constants()
        stop_token_ids = None if stop_token_ids is None else [*stop_token_ids]
        after_end = stop_token_ids[0] if stop_token_ids else 0
        certain = ops.one_hot(after_end, self.backbone.vocabulary_size)
        certain = (1.0 - ops.cast(certain, "float32")) * _NEVER

        def next(prompt, cache, index):
            states, has_stopped, room = cache
            previous = ops.slice(
                prompt, [0, index - 1], [ops.shape(prompt)[0], 1]
            )
            if stop_token_ids:
                stops = _is_any(previous[:, 0], stop_token_ids)
                has_stopped = has_stopped | (stops & (index > start))
            logits, hidden_states, states = self.call_with_cache(
                previous, states, constants=constants
            )
            # What is over says one token and is sure of it: a beam keeps its
            # score, and a row that has no room left counts as stopped.
            is_over = has_stopped | (index - start >= room)
            logits = ops.cast(logits[:, 0], "float32")
            logits = ops.where(is_over[:, None], certain, logits)
            return logits, hidden_states[:, 0], (states, has_stopped, room)

        columns = ops.arange(0, 1 + slots, dtype="int32")
        prompt = ops.where(columns == start - 1, inputs["last_token_ids"], 0)
        outputs = self.sampler(
            next=next,
            prompt=prompt,
            cache=(states, room < 0, room),
            index=start,
            mask=ops.broadcast_to(columns < start, ops.shape(prompt)),
            stop_token_ids=stop_token_ids,
            model=self,
        )[:, 1:]
        position = columns[1:] - start
        counts = position < room[:, None]
        if stop_token_ids:
            stops = _is_any(outputs, stop_token_ids) & (position >= 0)
            stops = ops.cast(stops, "int32")
            counts = counts & (ops.cumsum(stops, axis=1) - stops == 0)
        return {"token_ids": outputs, "padding_mask": counts}

    # Scores.

    def score(
        self,
        token_ids,
        padding_mask=None,
        scoring_mode="logits",
        layer_intercept_fn=None,
        target_ids=None,
    ):
        """The logits, or the losses, of given texts.

        Args:
            token_ids: integers, (batch, time).
            padding_mask: (batch, time), true where there is a token. Defaults
                to `None`, everywhere.
            scoring_mode: `"logits"` or `"loss"`, the negative logarithm of
                each target's probability. Defaults to `"logits"`.
            layer_intercept_fn: function of (batch, time, hidden_dim) and an
                integer: -1 for what the embedding gives, else the layer whose
                output it is; what it returns takes its place. Defaults to
                `None`.
            target_ids: integers, (batch, time), the token that should come
                after each, for `"loss"`. Defaults to `None`.

        Returns:
            (batch, time, vocabulary_size), or (batch, time) for `"loss"`.

        Raises:
            ValueError: for another mode, and for `"loss"` without targets.
        """
        require_choice("scoring_mode", scoring_mode, SCORING_MODES)
        if scoring_mode == "loss" and target_ids is None:
            raise ValueError(
                "`target_ids` should be given for a loss. Received: "
                "scoring_mode='loss', target_ids=None"
            )
        hidden_states = self.backbone.hidden_states(
            token_ids, padding_mask, layer_intercept_fn=layer_intercept_fn
        )
        logits = self.backbone.token_embedding(hidden_states, reverse=True)
        if scoring_mode == "logits":
            return logits
        return keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction="none"
        )(target_ids, logits)


def _require_by_token(sampler):
    looks_back = isinstance(sampler, (ContrastiveSampler, SpeculativeSampler))
    every_beam = isinstance(sampler, BeamSampler) and sampler.return_all_beams
    if looks_back or every_beam:
        raise ValueError(
            "`sampler` should choose each token by its probability alone, "
            "and one text a row: a recurrent model keeps no earlier "
            "tokens' states to compare with or to go back to. Received: "
            f"sampler={type(sampler).__name__}"
            + ("(return_all_beams=True)" if every_beam else "")
        )


def _is_sequence(inputs):
    return isinstance(inputs, (list, tuple, np.ndarray))


def _require_texts(inputs):
    if not all(isinstance(text, (str, bytes)) for text in inputs):
        raise ValueError(
            "`inputs` should be a string or a sequence of strings, as the "
            f"model has a preprocessor. Received: inputs={inputs}"
        )


def _require_tokens(inputs, vocabulary_size):
    if not isinstance(inputs, dict) or not (
        {"token_ids", "padding_mask"} <= set(inputs)
    ):
        raise ValueError(
            "`inputs` should be a dictionary of `token_ids` and "
            "`padding_mask`, as the model has no preprocessor. "
            f"Received: inputs={inputs}"
        )
    token_ids = ops.convert_to_numpy(inputs["token_ids"])
    padding_mask = ops.convert_to_numpy(inputs["padding_mask"])
    if token_ids.ndim != 2 or token_ids.shape != padding_mask.shape:
        raise ValueError(
            "`token_ids` and `padding_mask` should both have the shape "
            f"(batch, time). Received: token_ids.shape={token_ids.shape}, "
            f"padding_mask.shape={padding_mask.shape}"
        )
    is_integer = np.issubdtype(token_ids.dtype, np.integer)
    if not is_integer or not _are_tokens(token_ids, vocabulary_size):
        raise ValueError(
            f"`token_ids` should be integers from 0 to {vocabulary_size - 1}. "
            f"Received: token_ids={token_ids}"
        )


def _checked_stops(stop_token_ids, vocabulary_size):
    """A tuple of tokens, `"auto"` or `None`."""
    if stop_token_ids is None or (
        isinstance(stop_token_ids, str) and stop_token_ids == "auto"
    ):
        return stop_token_ids
    values = np.asarray(stop_token_ids)
    if values.shape == (0,):
        return None
    is_integer = np.issubdtype(values.dtype, np.integer) and values.ndim == 1
    if not is_integer or not _are_tokens(values, vocabulary_size):
        raise ValueError(
            "`stop_token_ids` should be 'auto', None or a sequence of integers "
            f"from 0 to {vocabulary_size - 1}. "
            f"Received: stop_token_ids={stop_token_ids}"
        )
    return tuple(values.tolist())


def _require_streaming(backbone):
    block = backbone.unit_blocks[0]
    try:
        block._require_streaming()
    except ValueError as failure:
        raise ValueError(
            "A language model's units should run step by step and read "
            "forwards only: what reads both ways has seen the token it is to "
            f"predict. Received: {type(block.unit).__name__} as the backbone's "
            "`unit`"
        ) from failure


def _are_tokens(values, vocabulary_size):
    return ((values >= 0) & (values < vocabulary_size)).all()


def _lengths(padding_mask):
    """How many tokens each row has, (batch,), which come first in it."""
    mask = ops.convert_to_numpy(padding_mask)
    lengths = mask.sum(axis=1)
    if not lengths.all():
        raise ValueError(
            "Every prompt should have a token to begin with, such as the "
            "start token. Received: `padding_mask` without any in the rows "
            f"{np.flatnonzero(lengths == 0).tolist()}"
        )
    is_prefix = mask == (np.arange(mask.shape[1]) < lengths[:, None])
    if not is_prefix.all():
        raise ValueError(
            "The tokens of a prompt should be the first of its row. Received: "
            "`padding_mask` with holes in the rows "
            f"{np.flatnonzero(~is_prefix.all(axis=1)).tolist()}"
        )
    return lengths.astype("int32")


def _is_any(token_ids, values):
    return ops.any(
        ops.expand_dims(token_ids, -1) == ops.convert_to_tensor(values), axis=-1
    )
