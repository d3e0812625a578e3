"""Fine-tune the model in base/ on right sums, with TRL's SFTTrainer."""

import argparse

import torch
from datasets import Dataset
from trl import SFTConfig, SFTTrainer

parser = argparse.ArgumentParser()
parser.add_argument("--resume", help="a checkpoint to go on from")
given = parser.parse_args()

torch.set_num_threads(1)  # a tiny model; leave this line out for yours
sums = [{"prompt": f"{a} + {b} =", "completion": f" {a + b}"} for a in range(20) for b in range(20)]
data = Dataset.from_list(sums).train_test_split(0.25, seed=0)
trainer = SFTTrainer(
    model="base",
    train_dataset=data["train"],
    eval_dataset=data["test"],
    args=SFTConfig(
        output_dir="sft",
        max_steps=1500,
        per_device_train_batch_size=32,
        learning_rate=1e-3,
        logging_steps=100,
        eval_strategy="steps",
        eval_steps=100,
        save_steps=100,
        save_total_limit=3,
        bf16=torch.cuda.is_available(),
    ),
)
trainer.train(resume_from_checkpoint=given.resume)
trainer.save_model("sft")
