"""Train a small GPT-2 with transformers' Trainer, as its run_clm.py does."""

import argparse
import time

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import (
    DataCollatorForLanguageModeling,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

TEXTS = [f"the {a} sees the {b} near the {a}" for a in ["cat", "dog", "cow"] for b in "abcdefgh"]


class Pause(TrainerCallback):
    def __init__(self, seconds):
        self.seconds = seconds

    def on_step_end(self, args, state, control, **kwargs):
        time.sleep(self.seconds)


def make_tokenizer():
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.BpeTrainer(vocab_size=120, special_tokens=["<unk>", "<s>", "</s>"])
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
    parser.add_argument("--resume", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = make_tokenizer()
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=len(tokenizer), n_positions=32, n_embd=32, n_layer=2, n_head=2)
    )
    rows = [tokenizer(text, truncation=True, max_length=32) for text in TEXTS]
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir="out",
            max_steps=given.steps,
            per_device_train_batch_size=4,
            learning_rate=3e-3,
            logging_steps=5,
            eval_strategy="steps",
            eval_steps=10,
            save_steps=10,
            save_total_limit=3,
        ),
        train_dataset=rows[:20],
        eval_dataset=rows[20:],
        processing_class=tokenizer,
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
        callbacks=[Pause(given.pause)],
    )
    result = trainer.train(resume_from_checkpoint=given.resume or None)
    trainer.save_model()
    trainer.log_metrics("train", result.metrics)
    trainer.save_metrics("train", result.metrics)
    trainer.save_state()
    metrics = trainer.evaluate()
    trainer.log_metrics("eval", metrics)
    trainer.save_metrics("eval", metrics)


if __name__ == "__main__":
    main()
