"""Boost trees with LightGBM and save the booster every ten rounds."""

import argparse
import os
import time

import lightgbm as lgb
import numpy as np


def snapshot(period, pause):
    def callback(env):
        time.sleep(pause)
        if (env.iteration + 1) % period == 0:
            env.model.save_model(f"boosters/model_{env.iteration + 1}.txt")

    callback.order = 30
    return callback


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--pause", type=float, default=0.0)
    given = parser.parse_args()
    x = np.random.default_rng(0).normal(size=(1000, 8))
    y = (x[:, 0] * x[:, 1] > 0).astype(int)
    train = lgb.Dataset(x[:800], y[:800])
    valid = lgb.Dataset(x[800:], y[800:], reference=train)
    os.makedirs("boosters", exist_ok=True)
    booster = lgb.train(
        {"objective": "binary", "num_leaves": 15, "num_threads": 1, "verbosity": -1},
        train,
        num_boost_round=given.rounds,
        valid_sets=[valid],
        valid_names=["valid"],
        callbacks=[lgb.log_evaluation(5), snapshot(10, given.pause)],
    )
    booster.save_model("boosters/model.txt")


if __name__ == "__main__":
    main()
