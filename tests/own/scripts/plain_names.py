"""A loop that saves its weights as ``step_N``, without a suffix, after evaluating."""

import argparse
import json
import os
import time

import torch
from torch import nn


def make_model():
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--pause", type=float, default=0.0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(2)
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    x = torch.randn(320, 8)
    y = (x[:, :1] * x[:, 1:2]).sin()
    folder = os.path.join("checkpoints", "puzzles", "small")
    os.makedirs(folder, exist_ok=True)
    for step in range(1, given.steps + 1):
        begin = step * 32 % 256
        loss = nn.functional.mse_loss(model(x[begin : begin + 32]), y[begin : begin + 32])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(given.pause)
        if step % 10 == 0:
            with torch.no_grad():
                value = nn.functional.mse_loss(model(x[256:]), y[256:]).item()
            print(json.dumps({"step": step, "eval": {"lm_loss": round(value, 5)}}), flush=True)
            torch.save(model.state_dict(), os.path.join(folder, f"step_{step}"))


if __name__ == "__main__":
    main()
