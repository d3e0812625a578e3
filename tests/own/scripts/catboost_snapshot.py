"""Boost trees with CatBoost, which keeps a snapshot to continue from."""

import argparse
import time

import numpy as np
from catboost import CatBoostClassifier


class Pause:
    def __init__(self, seconds):
        self.seconds = seconds

    def after_iteration(self, info):
        time.sleep(self.seconds)
        return True


def make_data():
    x = np.random.default_rng(0).normal(size=(1000, 8))
    return x, (x[:, 0] * x[:, 1] > 0).astype(int)


def make_model(rounds):
    return CatBoostClassifier(
        iterations=rounds,
        depth=4,
        learning_rate=0.2,
        thread_count=1,
        random_seed=0,
        metric_period=5,
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--pause", type=float, default=0.0)
    given = parser.parse_args()
    x, y = make_data()
    model = make_model(given.rounds)
    model.fit(
        x[:800],
        y[:800],
        eval_set=(x[800:], y[800:]),
        save_snapshot=True,
        snapshot_interval=1,
        callbacks=[Pause(given.pause)],
    )
    model.save_model("model.cbm")


if __name__ == "__main__":
    main()
