"""Boost trees with XGBoost, which checks in every few rounds with TrainingCheckPoint."""

import argparse
import os
import time

import numpy as np
import xgboost as xgb


class Pause(xgb.callback.TrainingCallback):
    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds

    def after_iteration(self, model, epoch, evals_log):
        time.sleep(self.seconds)
        return False


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--pause", type=float, default=0.0)
    given = parser.parse_args()
    x = np.random.default_rng(0).normal(size=(1000, 8))
    y = (x[:, 0] * x[:, 1] > 0).astype(int)
    train, valid = xgb.DMatrix(x[:800], y[:800]), xgb.DMatrix(x[800:], y[800:])
    os.makedirs("boosters", exist_ok=True)
    booster = xgb.train(
        {"objective": "binary:logistic", "eta": 0.2, "max_depth": 4, "nthread": 1},
        train,
        num_boost_round=given.rounds,
        evals=[(train, "train"), (valid, "valid")],
        callbacks=[
            Pause(given.pause),
            xgb.callback.TrainingCheckPoint("boosters", name="model", interval=10),
        ],
    )
    booster.save_model("boosters/final.ubj")


if __name__ == "__main__":
    main()
