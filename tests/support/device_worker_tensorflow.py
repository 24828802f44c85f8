"""The TensorFlow worker of `test_devices`: losses on one and two CPUs."""

import json
import os

os.environ["KERAS_BACKEND"] = "tensorflow"

import tensorflow as tf
from support.device_model import BATCH
from support.device_model import build
from support.device_model import compiled
from support.device_model import data


def train(model):
    """As `device_model.train`, but by `fit`, which distributes the rows."""
    history = compiled(model).fit(
        *data(), batch_size=BATCH, epochs=4, shuffle=False, verbose=0
    )
    return history.history["loss"]


if __name__ == "__main__":
    (device,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(
        device, [tf.config.LogicalDeviceConfiguration()] * 2
    )
    found = {"one": train(build())}
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        model = build()
    found["data"] = train(model)
    found["replicas"] = strategy.num_replicas_in_sync
    print(json.dumps(found))
