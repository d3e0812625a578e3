"""Reward the right sums of the model in base/, with TRL's GRPOTrainer."""

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer


def reward_right(completions, answer, **columns):
    """1 for each completion that is the answer, else 0."""
    return [float(said.strip() == right) for said, right in zip(completions, answer, strict=True)]


torch.set_num_threads(1)  # a tiny model; leave this line out for yours
sums = [{"prompt": f"{a} + {b} =", "answer": f"{a + b}"} for a in range(20) for b in range(20)]
trainer = GRPOTrainer(
    model="base",
    reward_funcs=reward_right,
    train_dataset=Dataset.from_list(sums),
    args=GRPOConfig(
        output_dir="grpo",
        max_steps=100,
        per_device_train_batch_size=64,
        num_generations=8,
        max_completion_length=4,
        learning_rate=5e-4,
        logging_steps=20,
        save_steps=20,
        save_total_limit=3,
        bf16=torch.cuda.is_available(),
    ),
)
trainer.train()
trainer.save_model("grpo")
