"""Reward short completions of a tiny Llama with TRL's GRPOTrainer."""

import argparse
import time

import torch
from datasets import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from trl_sft import make_tokenizer


class Pause(TrainerCallback):
    def __init__(self, seconds):
        self.seconds = seconds

    def on_step_end(self, args, state, control, **kwargs):
        time.sleep(self.seconds)


def reward_evens(completions, **kwargs):
    """Share of the words that are even numbers."""
    return [
        sum(word in {"2", "4", "6", "8"} for word in text.split()) / max(1, len(text.split()))
        for text in completions
    ]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--pause", type=float, default=0.0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = make_tokenizer()
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=64,
            bos_token_id=1,
            eos_token_id=2,
            pad_token_id=2,
        )
    )
    model.generation_config.eos_token_id = 2
    prompts = [{"prompt": f"question {a} plus {b} answer"} for a in range(8) for b in range(4)]
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=reward_evens,
        train_dataset=Dataset.from_list(prompts),
        args=GRPOConfig(
            output_dir="grpo",
            max_steps=given.steps,
            per_device_train_batch_size=4,
            num_generations=4,
            max_completion_length=8,
            learning_rate=5e-3,
            logging_steps=2,
            save_steps=4,
            save_total_limit=2,
            use_cpu=True,
            bf16=False,
        ),
        callbacks=[Pause(given.pause)],
    )
    trainer.train()
    trainer.save_model("grpo")


if __name__ == "__main__":
    main()
