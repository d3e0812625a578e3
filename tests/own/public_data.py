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


def write_similar(folder: Path) -> None:
    """STS's three tables of pairs with a similarity, and the BERT of ``write_glue``."""
    write_glue(folder)
    chance = random.Random(1)
    words = [f"word{index}" for index in range(40)]
    for name, count in (("train", 640), ("validation", 128), ("test", 128)):
        with open(folder / f"{name}.csv", "w", newline="") as content:
            lines = csv.writer(content)
            lines.writerow(["sentence1", "sentence2", "score"])
            for _ in range(count):
                first, same = chance.sample(words, 6), chance.randrange(7)
                second = first[:same] + chance.sample(words, 6 - same)
                lines.writerow([" ".join(first), " ".join(second), round(same / 6, 3)])


def write_conversations(folder: Path) -> None:
    """FastChat's turns, and the GPT-2 of ``write_instructions`` with an unknown token."""
    import json

    from transformers import GPT2TokenizerFast

    write_instructions(folder)
    chance = random.Random(0)
    rows = []
    for index in range(160):
        number = chance.randrange(50)
        turns = (("human", f"Add one to {number}."), ("gpt", str(number + 1)))
        rows.append(
            {
                "id": str(index),
                "conversations": [{"from": who, "value": said} for who, said in turns],
            }
        )
    (folder / "data.json").write_text(json.dumps(rows))
    tokenizer = GPT2TokenizerFast.from_pretrained(str(folder / "tiny-gpt2"))
    tokenizer.unk_token = tokenizer.eos_token
    tokenizer.save_pretrained(folder / "tiny-gpt2")


def write_birds(folder: Path) -> None:
    write_images(folder)
    (folder / "images" / "validation").rename(folder / "images" / "val")
    (folder / "images").rename(folder / "fowl_data")


def write_fashion(folder: Path) -> None:
    _write_idx(folder / "data" / "FashionMNIST" / "raw", 4000, 500)


def write_few_digits(folder: Path) -> None:
    _write_idx(folder / "data" / "MNIST" / "raw", 640, 64)


def write_projects(folder: Path) -> None:
    """Projects with a tag, and a BERT of two layers."""
    write_glue(folder)
    chance = random.Random(0)
    with open(folder / "dataset.csv", "w", newline="") as content:
        lines = csv.writer(content)
        lines.writerow(["id", "created_on", "title", "description", "tag"])
        for index in range(400):
            tag = chance.randrange(3)
            words = chance.choices([f"word{10 * tag + each}" for each in range(18)], k=8)
            told = [str(index), "2020-01-01", words[0], " ".join(words[1:]), f"tag{tag}"]
            lines.writerow(told)


def write_words(folder: Path) -> None:
    (folder / "data").mkdir()
    write_text(folder)
    words = (folder / "input.txt").read_text().split()
    lines = [" ".join(words[start : start + 12]) for start in range(0, len(words), 12)]
    (folder / "data" / "train.txt").write_text("\n".join(lines) + "\n")


def write_photos(folder: Path) -> None:
    """700 images in folders with spaces and signs, and the folders of its saves."""
    from PIL import Image

    chance = np.random.default_rng(0)
    for name, count in (("DIV2K train (HR)", 700), ("DIV2K valid & test", 15)):
        target = folder / "data" / name
        target.mkdir(parents=True)
        (target / ".index").write_text("hidden\n")
        for index in range(count):
            coarse = chance.integers(0, 256, (8, 8, 3)).astype(np.uint8)
            image = Image.fromarray(coarse).resize((64, 64), Image.Resampling.BICUBIC)
            image.save(target / f"é {index} #.png")
    for name in ("epochs", "statistics"):  # the repository has them by hidden files
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "README").write_text("what the training writes\n")


def write_names(folder: Path) -> None:
    """Names of 18 languages, one hidden file per language beside them."""
    chance = random.Random(0)
    target = folder / "names of #18 länder"
    target.mkdir()
    for index in range(18):
        letters = "abcdefghijklmnopqrstuvwxyz"[index : index + 7]
        lines = ["".join(chance.choices(letters, k=6)) for _ in range(60)]
        (target / f"Größe {index} & more.txt").write_text("\n".join(lines) + "\n")
        (target / f".{index}").write_text("hidden\n")


def write_stallion(folder: Path) -> None:
    """Monthly volumes of 12 agencies and 2 articles, with the columns that the script reads."""
    import pandas as pd

    chance = np.random.default_rng(0)
    days = [
        "easter_day",
        "good_friday",
        "new_year",
        "christmas",
        "labor_day",
        "independence_day",
        "revolution_day_memorial",
        "regional_games",
        "fifa_u_17_world_cup",
        "football_gold_cup",
        "beer_capital",
        "music_fest",
    ]
    rows = []
    for agency in range(12):
        for sku in range(2):
            for month, date in enumerate(pd.date_range("2013-01-01", periods=60, freq="MS")):
                wave = 40 + 20 * np.sin(month / 6 * np.pi + agency) + chance.normal(0, 3)
                row = {"agency": f"Agency_{agency:02}", "sku": f"SKU_{sku:02}", "date": date}
                row |= {"volume": max(wave, 0.0), "industry_volume": 5e5 + wave}
                row |= {"soda_volume": 7e5 - wave, "avg_max_temp": 20 + wave / 10}
                row |= {"price_regular": 1000.0 + agency, "price_actual": 990.0, "discount": 10.0}
                row |= {
                    "avg_population_2017": 1e5 + agency,
                    "avg_yearly_household_income_2017": 1e5,
                }
                row |= {"discount_in_percent": chance.random(), "timeseries": 2 * agency + sku}
                rows.append(row | {day: int(chance.random() < 0.1) for day in days})
    pd.DataFrame(rows).to_parquet(folder / "stallion.parquet")


WRITERS: dict[str, Callable[[Path], None]] = {
    name.removeprefix("write_"): writer
    for name, writer in list(globals().items())
    if name.startswith("write_")
}

if __name__ == "__main__":
    WRITERS[sys.argv[1]](Path(sys.argv[2]))
