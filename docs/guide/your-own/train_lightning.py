"""Lightning's Trainer, a small network, its TensorBoard files, and one line for trmcloud."""

import argparse
import pathlib

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from trmcloud_job_lightning import TrmcloudCallback

CONTEXT, WIDTH = 16, 64
text = pathlib.Path(argparse.__file__).read_text(encoding="utf-8")
letters = sorted(set(text))
ids = torch.tensor([letters.index(letter) for letter in text])
rows = ids.unfold(0, CONTEXT + 1, 1)
split = len(rows) * 9 // 10
torch.set_num_threads(1)


class Characters(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Embedding(len(letters), WIDTH),
            nn.Flatten(),
            nn.Linear(CONTEXT * WIDTH, len(letters)),
        )

    def loss(self, batch: list[torch.Tensor]) -> torch.Tensor:
        [row] = batch
        return nn.functional.cross_entropy(self.network(row[:, :-1]), row[:, -1])

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        loss = self.loss(batch)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        self.log("val_loss", self.loss(batch))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


pl.Trainer(
    accelerator="cpu",
    max_steps=100_000,
    val_check_interval=100,
    limit_val_batches=10,
    enable_progress_bar=False,
    logger=TensorBoardLogger("logs"),
    callbacks=[
        TrmcloudCallback("out"),
        ModelCheckpoint("out", "{step}", monitor="val_loss", save_top_k=2),
    ],
).fit(
    Characters(),
    DataLoader(TensorDataset(rows[:split]), batch_size=64, shuffle=True),
    DataLoader(TensorDataset(rows[split:]), batch_size=64),
)
