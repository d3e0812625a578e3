"""A plain PyTorch loop that has never heard of trmcloud: the characters of Python's argparse."""

import argparse
import pathlib

import torch
from torch import nn

CONTEXT, WIDTH, BATCH, STEPS = 16, 64, 64, 100_000
text = pathlib.Path(argparse.__file__).read_text(encoding="utf-8")
letters = sorted(set(text))
ids = torch.tensor([letters.index(letter) for letter in text])
split = len(ids) * 9 // 10
torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(
    nn.Embedding(len(letters), WIDTH),
    nn.Flatten(),
    nn.Linear(CONTEXT * WIDTH, WIDTH),
    nn.GELU(),
    nn.Linear(WIDTH, len(letters)),
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def loss_on(part: torch.Tensor) -> torch.Tensor:
    starts = torch.randint(len(part) - CONTEXT, (BATCH,))
    rows = torch.stack([part[start : start + CONTEXT] for start in starts])
    answers = torch.stack([part[start + CONTEXT] for start in starts])
    return nn.functional.cross_entropy(model(rows), answers)


pathlib.Path("out").mkdir(exist_ok=True)
for step in range(1, STEPS + 1):
    loss = loss_on(ids[:split])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 200 == 0:
        with torch.no_grad():
            held_out = sum(loss_on(ids[split:]) for _ in range(20)) / 20
        print(f"step {step} train_loss={loss.item():.4f} val_loss={held_out:.4f}")
        torch.save(model.state_dict(), f"out/step-{step}.pt")
