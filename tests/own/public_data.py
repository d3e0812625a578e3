"""Small synthetic data for the scripts of ``public.py``, in the layouts that they read.

``python -m tests.own.public_data NAME FOLDER`` writes it, with the packages of ``.venv-own``.
"""

from __future__ import annotations

import csv
import random
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

TEXT = "O God, O God! To be, or not to be: that is the question.\n"


def write_text(folder: Path) -> None:
    chance = random.Random(0)
    words = [*TEXT.split(), "whether", "nobler", "mind", "suffer", "slings", "arrows"]
    (folder / "input.txt").write_text(TEXT + " ".join(chance.choices(words, k=20_000)))


def write_characters(folder: Path) -> None:
    """nanoGPT's token files."""
    import pickle

    write_text(folder)
    text = (folder / "input.txt").read_text()
    letters = sorted(set(text))
    number = {letter: index for index, letter in enumerate(letters)}
    tokens = np.array([number[letter] for letter in text], dtype=np.uint16)
    target = folder / "data" / "shakespeare_char"
    target.mkdir(parents=True, exist_ok=True)
    cut = int(len(tokens) * 0.9)
    tokens[:cut].tofile(target / "train.bin")
    tokens[cut:].tofile(target / "val.bin")
    about = {"vocab_size": len(letters), "stoi": number, "itos": dict(enumerate(letters))}
    (target / "meta.pkl").write_bytes(pickle.dumps(about))


def _write_idx(folder: Path, train: int, test: int) -> None:
    """MNIST's four files: a square whose place is the label, in noise."""
    folder.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(0)
    for name, count in (("train", train), ("t10k", test)):
        labels = noise.integers(0, 10, count).astype(np.uint8)
        images = noise.integers(0, 120, (count, 28, 28)).astype(np.uint8)
        for image, label in zip(images, labels, strict=True):
            image[2 * label : 2 * label + 6, 4:12] = 255
        head = struct.pack(">IIII", 0x803, count, 28, 28)
        (folder / f"{name}-images-idx3-ubyte").write_bytes(head + images.tobytes())
        head = struct.pack(">II", 0x801, count)
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(head + labels.tobytes())


def write_mnist(folder: Path) -> None:
    _write_idx(folder / "data" / "MNIST" / "raw", 4000, 1000)


def write_mnist_lightning(folder: Path) -> None:
    """It looks into two folders."""
    for name in ("Datasets", "data"):
        _write_idx(folder / name / "MNIST" / "raw", 2000, 200)


def write_cora(folder: Path) -> None:
    """1,500 nodes of three classes, as pyGAT's loader reads them."""
    chance = np.random.default_rng(0)
    target = folder / "data" / "cora"
    target.mkdir(parents=True, exist_ok=True)
    labels = chance.integers(0, 3, 1500)
    words = chance.random((1500, 60)) < 0.1
    for node, label in enumerate(labels):
        words[node, 8 * label : 8 * label + 8] |= chance.random(8) < 0.3
    lines = [
        "\t".join([str(node), *map(str, words[node].astype(int)), f"class{labels[node]}"])
        for node in range(1500)
    ]
    (target / "cora.content").write_text("\n".join(lines) + "\n")
    pairs = [
        (node, int(chance.choice(np.flatnonzero(labels == labels[node])))) for node in range(1500)
    ]
    (target / "cora.cites").write_text("".join(f"{a}\t{b}\n" for a, b in pairs))


def write_table(folder: Path) -> None:
    """Hourly values of seven columns, the last of which is the target."""
    import datetime

    (folder / "data").mkdir(exist_ok=True)
    chance, start = np.random.default_rng(0), datetime.datetime(2020, 1, 1)
    with open(folder / "data" / "tiny.csv", "w", newline="") as content:
        lines = csv.writer(content)
        lines.writerow(["date", *(f"v{column}" for column in range(6)), "OT"])
        for hour in range(1500):
            wave = np.sin(hour / 24 * 2 * np.pi + np.arange(7)) + chance.normal(0, 0.3, 7)
            lines.writerow([str(start + datetime.timedelta(hours=hour)), *wave.round(4)])


def write_glue(folder: Path) -> None:
    """Pairs of sentences, a BERT of two layers with its vocabulary, and a metric of one file."""
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

    chance = random.Random(0)
    words = [f"word{index}" for index in range(40)]
    for name, count in (("train.csv", 320), ("valid.csv", 96)):
        with open(folder / name, "w", newline="") as content:
            lines = csv.writer(content)
            lines.writerow(["sentence1", "sentence2", "label", "idx"])
            for index in range(count):
                label = chance.randrange(2)
                first = chance.choices(words[:30] if label else words[10:], k=6)
                second = chance.choices(words[:30] if label else words[10:], k=6)
                flipped = label if chance.random() < 0.85 else 1 - label
                lines.writerow([" ".join(first), " ".join(second), flipped, index])
    target = folder / "tiny-bert"
    target.mkdir(exist_ok=True)
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    (target / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    BertTokenizerFast(str(target / "vocab.txt")).save_pretrained(target)
    settings: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64}
    shape = BertConfig(
        vocab_size=len(vocabulary), num_hidden_layers=2, num_attention_heads=2, **settings
    )
    BertForSequenceClassification(shape).save_pretrained(target)
    (folder / "local_metric.py").write_text(_METRIC)


_METRIC = '''"""Accuracy and F1, where the metrics of a hub cannot be downloaded."""


class Metric:
    def __init__(self):
        self.pairs = []

    def add_batch(self, predictions, references):
        self.pairs += list(zip(predictions.tolist(), references.tolist()))

    def compute(self):
        pairs, self.pairs = self.pairs, []
        right = sum(a == b for a, b in pairs)
        hits = sum(a == b == 1 for a, b in pairs)
        ones = sum((a == 1) + (b == 1) for a, b in pairs)
        return {"accuracy": right / len(pairs), "f1": 2 * hits / max(ones, 1)}


def load(*names):
    return Metric()
'''


def write_instructions(folder: Path) -> None:
    """Instructions with answers, and a GPT-2 of two layers whose tokenizer knows their bytes."""
    import json

    from tokenizers import ByteLevelBPETokenizer
    from transformers import GPT2Config, GPT2LMHeadModel, GPT2TokenizerFast

    chance = random.Random(0)
    rows = []
    for _ in range(160):
        number = chance.randrange(50)
        asked = {"instruction": f"Add one to {number}.", "input": "", "output": str(number + 1)}
        rows.append(asked)
    (folder / "data.json").write_text(json.dumps(rows))
    learned = ByteLevelBPETokenizer()
    texts = [f"{row['instruction']} {row['output']}" for row in rows]
    learned.train_from_iterator(texts, vocab_size=400, special_tokens=["<|endoftext|>"])
    target = folder / "tiny-gpt2"
    target.mkdir(exist_ok=True)
    learned.save_model(str(target))
    names = (str(target / "vocab.json"), str(target / "merges.txt"))
    tokenizer = GPT2TokenizerFast(*names)
    tokenizer.save_pretrained(target)
    shape = GPT2Config(vocab_size=len(tokenizer), n_embd=32, n_layer=2, n_head=2, n_positions=256)
    GPT2LMHeadModel(shape).save_pretrained(target)


def write_images(folder: Path) -> None:
    """An ImageFolder of two classes."""
    from PIL import Image

    chance = np.random.default_rng(0)
    for split, count in (("train", 48), ("validation", 24)):
        for label in range(2):
            target = folder / "images" / split / f"class{label}"
            target.mkdir(parents=True, exist_ok=True)
            for index in range(count):
                pixels = chance.integers(0, 200, (64, 64, 3)).astype(np.uint8)
                pixels[..., label] |= 4
                Image.fromarray(pixels).save(target / f"{index}.png")


WRITERS: dict[str, Callable[[Path], None]] = {
    name.removeprefix("write_"): writer
    for name, writer in list(globals().items())
    if name.startswith("write_")
}

if __name__ == "__main__":
    WRITERS[sys.argv[1]](Path(sys.argv[2]))
