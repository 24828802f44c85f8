"""Print the digits of recordings, which LiteRT reads block by block.

python digits_litert.py speech-rotrnn.tflite 7_jackson_0.wav
"""

import sys
import wave

import numpy as np

try:
    from ai_edge_litert.interpreter import Interpreter
except ImportError:  # its older, smaller name
    from tflite_runtime.interpreter import Interpreter


def read(path):
    """A second of a recording, 8 kHz and mono, as loud as in training."""
    if path.endswith(".npy"):
        sound = np.load(path)
    else:
        with wave.open(path) as file:
            sound = np.frombuffer(file.readframes(8000), "<i2")
    sound = sound[:8000].astype("float32")
    sound -= sound.mean()
    return sound / max(sound.std(), 1.0)


def load(path):
    return Interpreter(path, num_threads=1).get_signature_runner()


def answers(model, sound):
    """The probabilities of the ten digits after every block."""
    shapes = {k: v["shape"] for k, v in model.get_input_details().items()}
    # "sound" comes first, then "state_00" and the others.
    names = sorted(shapes)
    states = [np.zeros(shapes[name], "float32") for name in names[1:]]
    size = int(np.prod(shapes["sound"]))
    for end in range(size, len(sound) + 1, size):
        block = sound[end - size : end].reshape(shapes["sound"])
        outputs = model(**dict(zip(names, [block, *states])))
        probabilities, *states = (
            outputs[f"output_{place}"] for place in range(len(names))
        )
        yield probabilities[0]


if __name__ == "__main__":
    model = load(sys.argv[1])
    for path in sys.argv[2:]:
        *_, last = answers(model, read(path))
        print(path, last.argmax(), f"{last.max():.3f}")
