"""A Hydra application: its configuration, its log and its checkpoints are in its output folder."""

import logging
import pathlib
import time
from dataclasses import dataclass

import hydra
import torch
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from torch import nn

log = logging.getLogger(__name__)


@dataclass
class Config:
    epochs: int = 6
    pause: float = 0.0
    lr: float = 0.02


ConfigStore.instance().store("config", Config)


def make_model():
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))


@hydra.main(version_base=None, config_name="config")
def main(config: Config) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(2)
    folder = pathlib.Path(HydraConfig.get().runtime.output_dir) / "checkpoints"
    folder.mkdir()
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=config.lr)
    x = torch.randn(320, 8)
    y = (x[:, :1] * x[:, 1:2]).sin()
    for epoch in range(1, config.epochs + 1):
        for begin in range(0, 256, 32):
            loss = nn.functional.mse_loss(model(x[begin : begin + 32]), y[begin : begin + 32])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        time.sleep(config.pause)
        with torch.no_grad():
            value = nn.functional.mse_loss(model(x[256:]), y[256:]).item()
        log.info("epoch %d: val/loss=%.5f", epoch, value)
        torch.save(
            {"epoch": epoch, "state_dict": model.state_dict()}, folder / f"epoch_{epoch:03d}.ckpt"
        )
        torch.save({"epoch": epoch, "state_dict": model.state_dict()}, folder / "last.ckpt")


if __name__ == "__main__":
    main()
