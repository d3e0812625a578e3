"""Train a LoRA adapter of a small GPT-2 with PEFT and transformers' Trainer."""

import argparse
import time

import torch
from peft import LoraConfig, TaskType, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

VOCABULARY, CONTEXT = 64, 16


class Pause(TrainerCallback):
    def __init__(self, seconds):
        self.seconds = seconds

    def on_step_end(self, args, state, control, **kwargs):
        time.sleep(self.seconds)


def make_base():
    torch.manual_seed(7)
    config = GPT2Config(vocab_size=VOCABULARY, n_positions=CONTEXT, n_embd=32, n_layer=2, n_head=2)
    return GPT2LMHeadModel(config)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--pause", type=float, default=0.0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    lora = LoraConfig(
        task_type=TaskType.CAUSAL_LM,
        r=4,
        lora_alpha=16,
        lora_dropout=0.0,
        target_modules=["c_attn"],
        fan_in_fan_out=True,
    )
    model = get_peft_model(make_base(), lora)
    model.print_trainable_parameters()
    ids = torch.arange(80 * CONTEXT).view(80, CONTEXT) * 3 % 17
    rows = [{"input_ids": row, "labels": row} for row in ids]
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir="lora",
            max_steps=given.steps,
            per_device_train_batch_size=8,
            learning_rate=2e-2,
            logging_steps=5,
            eval_strategy="steps",
            eval_steps=10,
            save_steps=10,
            save_total_limit=2,
        ),
        train_dataset=rows[:64],
        eval_dataset=rows[64:],
        callbacks=[Pause(given.pause)],
    )
    trainer.train()
    model.save_pretrained("lora")


if __name__ == "__main__":
    main()
