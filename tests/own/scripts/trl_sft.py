"""Fine-tune a tiny Llama on a few texts with TRL's SFTTrainer."""

import argparse
import time

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from trl import SFTConfig, SFTTrainer

TEXTS = [f"question {a} plus {b} answer {a + b}" for a in range(8) for b in range(8)]


class Pause(TrainerCallback):
    def __init__(self, seconds):
        self.seconds = seconds

    def on_step_end(self, args, state, control, **kwargs):
        time.sleep(self.seconds)


def make_tokenizer():
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordLevelTrainer(special_tokens=["<unk>", "<s>", "</s>"])
    tokenizer.train_from_iterator(TEXTS, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        pad_token="</s>",
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
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
            pad_token_id=2,
        )
    )
    data = Dataset.from_list([{"text": text} for text in TEXTS]).train_test_split(0.25, seed=1)
    trainer = SFTTrainer(
        model=model,
        processing_class=tokenizer,
        train_dataset=data["train"],
        eval_dataset=data["test"],
        args=SFTConfig(
            output_dir="sft",
            max_steps=given.steps,
            per_device_train_batch_size=4,
            learning_rate=2e-3,
            max_length=32,
            logging_steps=5,
            eval_strategy="steps",
            eval_steps=10,
            save_steps=10,
            save_total_limit=2,
            use_cpu=True,
            bf16=False,
        ),
        callbacks=[Pause(given.pause)],
    )
    trainer.train()
    trainer.save_model("sft")


if __name__ == "__main__":
    main()
