"""Fit a small Keras model and save it after each epoch with ModelCheckpoint."""

import argparse
import os
import time

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import numpy as np


class Pause(keras.callbacks.Callback):
    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds

    def on_train_batch_end(self, batch, logs=None):
        time.sleep(self.seconds)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--pause", type=float, default=0.0)
    given = parser.parse_args()
    keras.utils.set_random_seed(4)
    x = np.random.default_rng(0).normal(size=(320, 8)).astype("float32")
    y = np.sin(x[:, :1] * x[:, 1:2])
    model = keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(1)]
    )
    model.compile(keras.optimizers.Adam(2e-2), "mse")
    model.fit(
        x[:256],
        y[:256],
        validation_data=(x[256:], y[256:]),
        epochs=given.epochs,
        callbacks=[
            Pause(given.pause),
            keras.callbacks.ModelCheckpoint("models/weights.{epoch:02d}-{val_loss:.4f}.keras"),
            keras.callbacks.CSVLogger("history.csv"),
        ],
    )
    model.save("models/final.keras")


if __name__ == "__main__":
    main()
