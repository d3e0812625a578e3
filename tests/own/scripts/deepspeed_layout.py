"""Write what DeepSpeed's save_checkpoint writes (ZeRO 2, one rank), without DeepSpeed."""

import argparse
import os
import time

import torch
from torch import nn


def make_model():
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))


def save_checkpoint(folder, step, model, optimizer):
    tag = f"global_step{step}"
    os.makedirs(os.path.join(folder, tag), exist_ok=True)
    torch.save(
        {"module": model.state_dict(), "global_steps": step, "dp_world_size": 1},
        os.path.join(folder, tag, "mp_rank_00_model_states.pt"),
    )
    torch.save(
        {"optimizer_state_dict": optimizer.state_dict(), "ds_version": "0.18.0"},
        os.path.join(folder, tag, "zero_pp_rank_0_mp_rank_00_optim_states.pt"),
    )
    with open(os.path.join(folder, "zero_to_fp32.py"), "w") as file:
        file.write("#!/usr/bin/env python\n")
    with open(os.path.join(folder, "latest"), "w") as file:
        file.write(tag)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--pause", type=float, default=0.0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(2)
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-2)
    x = torch.randn(320, 8)
    y = (x[:, :1] * x[:, 1:2]).sin()
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
            print(
                {"step": step, "loss": round(loss.item(), 4), "eval_loss": round(value, 5)},
                flush=True,
            )
            save_checkpoint("ds", step, model, optimizer)


if __name__ == "__main__":
    main()
