"""Train a LoRA adapter of the model in base/ on right sums, with TRL and PEFT."""

import torch
from datasets import Dataset
from peft import LoraConfig
from trl import SFTConfig, SFTTrainer

torch.set_num_threads(1)  # a tiny model; leave this line out for yours
sums = [{"prompt": f"{a} + {b} =", "completion": f" {a + b}"} for a in range(20) for b in range(20)]
data = Dataset.from_list(sums).train_test_split(0.25, seed=0)
trainer = SFTTrainer(
    model="base",
    train_dataset=data["train"],
    eval_dataset=data["test"],
    peft_config=LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM"),
    args=SFTConfig(
        output_dir="lora",
        max_steps=300,
        per_device_train_batch_size=32,
        learning_rate=5e-3,
        logging_steps=50,
        eval_strategy="steps",
        eval_steps=50,
        save_steps=50,
        save_total_limit=3,
        bf16=torch.cuda.is_available(),
    ),
)
trainer.train()
trainer.save_model("lora")
