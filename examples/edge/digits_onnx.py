"""Print the digits of recordings, which ONNX Runtime reads block by block.

python digits_onnx.py speech-rotrnn.onnx 7_jackson_0.wav
"""

import sys
import wave

import numpy as np
import onnxruntime


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
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options)


def answers(session, sound):
    """The probabilities of the ten digits after every block."""
    first, *others = session.get_inputs()
    states = [np.zeros(state.shape, "float32") for state in others]
    names = [given.name for given in (first, *others)]
    size = int(np.prod(first.shape))
    for end in range(size, len(sound) + 1, size):
        block = sound[end - size : end].reshape(first.shape)
        feeds = dict(zip(names, [block, *states]))
        probabilities, *states = session.run(None, feeds)
        yield probabilities[0]


if __name__ == "__main__":
    session = load(sys.argv[1])
    for path in sys.argv[2:]:
        *_, last = answers(session, read(path))
        print(path, last.argmax(), f"{last.max():.3f}")
