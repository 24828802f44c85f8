"""Recipes for raw speech."""

from recipes.recipe import Recipe

SPEECH = "Raw speech"


def of_speech(title, unit, unit_arguments, pool_size=4, **given):
    """Four residual blocks over raw sound, with averages between them."""
    classifier = {
        "num_layers": 4,
        "units": 48,
        "unit": unit,
        "unit_arguments": unit_arguments,
        "normalization": "batch",
        "pool_size": pool_size,
    }
    return Recipe(
        **{
            "section": SPEECH,
            "title": title,
            "task": "speech",
            "layers": (("SequenceClassifier", classifier),),
            "learning_rate": 3e-3,
            "rounds": 12,
            **given,
        }
    )


LSSL_SPEECH = {"state_size": 32}
# An initializer of `networks`.
RANDOM = {
    "class_name": "keras_linrec_examples>RandomTransition",
    "config": {"seed": 0},
}
ROTRNN_SPEECH = {"state_size": 96, "theta_max": 3.141592653589793}
LSTM_SPEECH = {"units": 48}
# A step of an LSTM over whole recordings takes half a second: the rounds are
# shorter, and as many as take the time of the others.
LSTM_ROUNDS = {"steps": 20, "rounds": 44}
NEVER_HEARD = "Raw speech of a speaker never heard"
UNHEARD = {
    "section": NEVER_HEARD,
    "task_arguments": {"unheard": True},
}
RATES = ("sampling_rates",)

RECIPES = {
    # As long as RotRNN, which takes twice the time for an epoch.
    "speech-lssl": of_speech(
        "LSSL", "lssl", LSSL_SPEECH, measurements=RATES, rounds=24
    ),
    "speech-lssl-varied": of_speech(
        "LSSL, varied band",
        "lssl",
        LSSL_SPEECH,
        task_arguments={"vary": True, "oversampling": 2},
        measurements=RATES,
        rounds=24,
        # The later blocks read as many steps as in the other models.
        pool_size=(8, 4, 4),
    ),
    "speech-s5": of_speech("S5", "s5", {"state_size": 48}, measurements=RATES),
    "speech-s4d": of_speech(
        "S4D", "s4d", {"state_size": 32}, measurements=RATES, rounds=24
    ),
    "speech-rotrnn": of_speech("RotRNN", "rotrnn", ROTRNN_SPEECH),
    "speech-lstm": of_speech(
        "keras.layers.LSTM", "lstm", LSTM_SPEECH, **LSTM_ROUNDS
    ),
    "speech-torch-lstm": of_speech(
        "torch.nn.LSTM",
        "torch_lstm",
        LSTM_SPEECH,
        backend="torch",
        steps=60,
        rounds=18,
    ),
    "speaker-lssl": of_speech("LSSL", "lssl", LSSL_SPEECH, **UNHEARD),
    "speaker-rotrnn": of_speech("RotRNN", "rotrnn", ROTRNN_SPEECH, **UNHEARD),
}

# Tables 7 and 8 and section 5.4 of Gu et al. 2021, on spoken digits. A factor
# of 100 around the 8,000th part suits recordings; the last is 100 times that.
PARTS = "Raw speech: what of an LSSL is trained"
LSSL_PARTS = {
    "trained": ("A and dt trained", {}),
    "fixed-dt": ("A trained", {"trainable_timescale": False}),
    "fixed-a": ("dt trained", {"trainable_transition": False}),
    "fixed": (
        "LSSL-fixed",
        {"trainable_transition": False, "trainable_timescale": False},
    ),
    "bad-dt": ("dt 100 times too long", {"dt_min": 0.1, "dt_max": 10.0}),
    "random": ("random A", {"measure": RANDOM}),
}
RECIPES |= {
    f"parts-lssl-{name}": of_speech(
        title,
        "lssl",
        {**LSSL_SPEECH, **arguments},
        section=PARTS,
        rounds=6,
    )
    for name, (title, arguments) in LSSL_PARTS.items()
}

ABOUT = {
    PARTS: "The first model of raw speech for a quarter of its training, with "
    "A and B, or the timescales dt, as they start; with dt from 0.1 to 10 "
    "instead of 0.001 to 0.1; and with a random A, whose entries are normal, "
    "shifted so that no state grows (Gu et al. 2021, tables 7 and 8, and "
    "section 5.4).",
    SPEECH: "3,000 recordings of ten digits by six speakers, 8,000 samples a "
    "second, cut at one second, with no spectrogram before the model. The test "
    "is the takes 0 to 4 of every speaker and digit: 300 recordings, of which "
    "one is 0.33 points. The LSTMs have the same blocks and the same mean over "
    "time; torch.nn.LSTM ran on PyTorch, with a bias of 1 in the forget gates, "
    "as Keras has; the others ran on JAX. torch.nn.LSTM, S5 and S4D ran on "
    "other machines. LSSL, RotRNN and the LSTMs train for about the same time: "
    "24 epochs, 12, 5 and 7. At half and a quarter of the rate, the recordings "
    "are low-pass filtered and downsampled, and the same weights classify "
    "them: with the timescales and averages of `with_step_rescale`, without, "
    "and resampled to the rate of the training by linear interpolation. At "
    "these rates the LSSL lacks frequencies that it learned from, and its "
    "bilinear transform shifts high ones: resampling recognises more. For the "
    "LSSL of varied band, half of the training recordings lose the frequencies "
    "above a random limit, and the model reads two steps for each sample, so "
    "that all frequencies are low per step. From the full rate to half of it, "
    "this model loses less than three points; at the full rate it recognises "
    "fewer recordings than the first.",
    NEVER_HEARD: "The same recordings; each seed tests on another speaker, and "
    "trains on the five others.",
}
