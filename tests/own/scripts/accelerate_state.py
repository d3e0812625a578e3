"""A training loop of its own with accelerate, which saves its state as accelerate numbers it."""

import argparse
import time

import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration, set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_model():
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--by-step", action="store_true", help="name folders step_N")
    given = parser.parse_args()
    torch.set_num_threads(1)
    set_seed(3)
    accelerator = Accelerator(
        cpu=True,
        project_config=ProjectConfiguration(
            project_dir="out", automatic_checkpoint_naming=not given.by_step, total_limit=3
        ),
    )
    x = torch.randn(320, 8)
    y = (x[:, :1] * x[:, 1:2]).sin()
    train = DataLoader(TensorDataset(x[:256], y[:256]), batch_size=32, shuffle=True)
    held_out = DataLoader(TensorDataset(x[256:], y[256:]), batch_size=64)
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(given.steps, 1))
    model, optimizer, train, held_out, schedule = accelerator.prepare(
        model, optimizer, train, held_out, schedule
    )
    step = 0
    while step < given.steps:
        for inputs, targets in train:
            model.train()
            loss = nn.functional.mse_loss(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            step += 1
            time.sleep(given.pause)
            if step % 10 == 0:
                model.eval()
                with torch.no_grad():
                    losses = [nn.functional.mse_loss(model(a), b).item() for a, b in held_out]
                value = sum(losses) / len(losses)
                accelerator.print(f"step {step}: loss {loss.item():.4f}, eval_loss: {value:.5f}")
                accelerator.save_state(f"out/step_{step}" if given.by_step else None)
            if step >= given.steps:
                break
    accelerator.wait_for_everyone()
    accelerator.save_model(model, "out/final")


if __name__ == "__main__":
    main()
