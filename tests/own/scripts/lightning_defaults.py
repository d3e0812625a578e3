"""Train a small network with Lightning's Trainer as it is: its own folder, logger and progress."""

import argparse
import time

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Regression(L.LightningModule):
    def __init__(self, width: int = 32, pause: float = 0.0):
        super().__init__()
        self.save_hyperparameters()
        self.network = nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 1))

    def training_step(self, batch, index):
        x, y = batch
        time.sleep(self.hparams.pause)
        loss = nn.functional.mse_loss(self.network(x), y)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, index):
        x, y = batch
        self.log("val_loss", nn.functional.mse_loss(self.network(x), y), prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=2e-2)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--pause", type=float, default=0.0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    L.seed_everything(5)
    x = torch.randn(320, 8)
    y = (x[:, :1] * x[:, 1:2]).sin()
    trainer = L.Trainer(accelerator="cpu", max_steps=given.steps, log_every_n_steps=5)
    trainer.fit(
        Regression(pause=given.pause),
        DataLoader(TensorDataset(x[:256], y[:256]), batch_size=32, shuffle=True),
        DataLoader(TensorDataset(x[256:], y[256:]), batch_size=32),
    )


if __name__ == "__main__":
    main()
