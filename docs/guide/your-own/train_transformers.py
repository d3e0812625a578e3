"""Hugging Face's Trainer, a small GPT-2 from a config, and one line for trmcloud."""

import argparse
import pathlib

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from trmcloud_job_transformers import TrmcloudCallback

CONTEXT = 64
text = pathlib.Path(argparse.__file__).read_text(encoding="utf-8")
letters = sorted(set(text))
ids = torch.tensor([letters.index(letter) for letter in text])
rows = ids[: len(ids) // CONTEXT * CONTEXT].view(-1, CONTEXT)
split = len(rows) * 9 // 10
examples = [{"input_ids": row, "labels": row} for row in rows]
torch.set_num_threads(1)
config = GPT2Config(
    vocab_size=len(letters),
    n_positions=CONTEXT,
    n_layer=2,
    n_head=2,
    n_embd=64,
    bos_token_id=0,
    eos_token_id=0,
)
Trainer(
    model=GPT2LMHeadModel(config),
    args=TrainingArguments(
        output_dir="out",
        max_steps=100_000,
        learning_rate=1e-3,
        per_device_train_batch_size=8,
        logging_steps=10,
        eval_strategy="steps",
        eval_steps=50,
        save_steps=50,
        save_total_limit=3,
        report_to="none",
        use_cpu=True,
    ),
    train_dataset=examples[:split],
    eval_dataset=examples[split:],
    callbacks=[TrmcloudCallback()],
).train()
