"""Train scikit-learn's MLPClassifier in epochs of partial_fit, and dump it with joblib."""

import argparse
import os
import time

import joblib
import numpy as np
from sklearn.metrics import log_loss
from sklearn.neural_network import MLPClassifier


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--pause", type=float, default=0.0)
    given = parser.parse_args()
    x = np.random.default_rng(0).normal(size=(1000, 8))
    y = (x[:, 0] * x[:, 1] > 0).astype(int)
    model = MLPClassifier((32,), learning_rate_init=0.02, random_state=0)
    os.makedirs("models", exist_ok=True)
    for epoch in range(1, given.epochs + 1):
        for begin in range(0, 800, 80):
            model.partial_fit(x[begin : begin + 80], y[begin : begin + 80], classes=[0, 1])
        time.sleep(given.pause)
        loss = log_loss(y[800:], model.predict_proba(x[800:]))
        print(f"Epoch {epoch}/{given.epochs} - log_loss: {loss:.4f}", flush=True)
        joblib.dump(model, f"models/mlp_epoch{epoch:03d}.joblib")


if __name__ == "__main__":
    main()
