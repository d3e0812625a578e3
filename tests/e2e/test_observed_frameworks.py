"""The observer in trainings of frameworks: what it notes, and that their losses stay the same."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.e2e.user import ROOT
from tests.unit.job.test_trmcloud_observer import Seen, observed

PYTHON = ROOT / ".venv-own/bin/python"
pytestmark = [
    pytest.mark.more,
    pytest.mark.skipif(not PYTHON.exists(), reason="they are not here: make own"),
]

LIGHTNING = """\
    import logging, warnings, torch
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    from lightning.pytorch import LightningModule, Trainer, seed_everything
    from lightning.pytorch.callbacks import ModelCheckpoint
    seed_everything(1)
    class Model(LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)
        def training_step(self, batch, _):
            return self.layer(batch[0]).pow(2).mean()
        def validation_step(self, batch, _):
            self.log("val_loss", self.layer(batch[0]).pow(2).mean())
        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=0.01)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(32, 4)), 8)
    saving = ModelCheckpoint("out", monitor="val_loss", save_top_k=-1)
    trainer = Trainer(max_epochs=3, logger=False, callbacks=[saving], accelerator="cpu",
                      enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(Model(), data, data)
    print("loss", trainer.callback_metrics["val_loss"].item(), len(trainer.callbacks))
"""
TRANSFORMERS = """\
    import torch
    from transformers import Trainer, TrainingArguments, set_seed
    set_seed(1)
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)
        def forward(self, x, labels=None):
            out = self.layer(x)
            return {"loss": (out - labels).pow(2).mean(), "logits": out}
    rows = [{"x": torch.randn(4), "labels": torch.randn(1)} for _ in range(32)]
    arguments = TrainingArguments("out", max_steps=9, eval_strategy="steps", eval_steps=3,
        save_steps=3, logging_steps=3, report_to=[], use_cpu=True, disable_tqdm=True)
    trainer = Trainer(Model(), arguments, train_dataset=rows, eval_dataset=rows)
    trainer.train()
    print("loss", [row["eval_loss"] for row in trainer.state.log_history if "eval_loss" in row])
"""
ACCELERATE = """\
    import torch
    from accelerate import Accelerator
    torch.manual_seed(1)
    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    model, optimizer = accelerator.prepare(model, optimizer)
    for epoch in range(3):
        loss = model(torch.ones(2, 4)).pow(2).mean()
        accelerator.backward(loss)
        optimizer.step()
        accelerator.log({"val_loss": loss.item()}, step=epoch)
        accelerator.save_state(f"out/epoch_{epoch}")
    print("loss", loss.item())
"""


def _losses(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("loss ")]


@pytest.mark.parametrize(
    ("code", "metric", "weights"),
    [
        (LIGHTNING, "val_loss", ".ckpt"),
        (TRANSFORMERS, "eval_loss", "model.safetensors"),
        (ACCELERATE, "val_loss", "model.safetensors"),
    ],
    ids=["lightning", "transformers", "accelerate"],
)
def test_each_evaluation_has_the_state_of_its_checkpoint(
    tmp_path: Path, code: str, metric: str, weights: str
) -> None:
    seen: Seen = observed(tmp_path, code, python=str(PYTHON))
    assert seen.code == 0, seen.text
    told = [state for _, _, state in seen.told(metric)]
    paths = [(line.get("saved") or line.get("moved", [""])[-1], line) for line in seen.lines]
    saved = list({path: line["state"] for path, line in paths if path.endswith(weights)}.values())
    assert len(told) == 3, seen.lines
    assert None not in told
    assert told == saved
    for left in tmp_path.glob("out"):
        left.rename(tmp_path / "before")
    plain = subprocess.run(
        [str(PYTHON), "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    assert _losses(seen.text) == _losses(plain.stdout) != [], plain.stderr
