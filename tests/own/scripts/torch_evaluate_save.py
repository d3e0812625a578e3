"""A plain PyTorch loop that evaluates, then saves; it keeps every epoch, and the best one again."""

import argparse
import os
import time

import torch
from torch import nn


def make_model():
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--pause", type=float, default=0.0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(2)
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    x = torch.randn(320, 8)
    y = (x[:, :1] * x[:, 1:2]).sin()
    best = float("inf")
    os.makedirs("checkpoints", exist_ok=True)
    for epoch in range(1, given.epochs + 1):
        for begin in range(0, 256, 32):
            loss = nn.functional.mse_loss(model(x[begin : begin + 32]), y[begin : begin + 32])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        time.sleep(given.pause)
        with torch.no_grad():
            value = nn.functional.mse_loss(model(x[256:]), y[256:]).item()
        print(f"Epoch: {epoch}  train_loss: {loss.item():.4f}  val_loss: {value:.5f}", flush=True)
        state = {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, f"checkpoints/epoch_{epoch}.pt")
        if value < best:
            best = value
            torch.save(state, "checkpoints/best.pt")


if __name__ == "__main__":
    main()
