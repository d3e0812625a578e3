"""Predict the next character of Python's own argparse.py from those before it, by softmax
regression in plain Python. Runs until it is asked to stop."""

import argparse
import inspect
import math
import os
import pickle
import random
import signal

LEARNING_RATE = 0.02
CONTEXT = 1
DECAY = 0.0

text = inspect.getsource(argparse)[:60_000]
letters = sorted(set(text))
codes = [letters.index(each) for each in text]
split = len(codes) * 9 // 10
tables = [[[0.0] * len(letters) for _ in letters] for _ in range(CONTEXT)]
stopping = []
signal.signal(signal.SIGTERM, lambda *_: stopping.append(True))


def chances(at: int) -> list[float]:
    rows = [table[codes[at - 1 - back]] for back, table in enumerate(tables)]
    scores = [sum(column) for column in zip(*rows, strict=True)]
    top = max(scores)
    powers = [math.exp(score - top) for score in scores]
    whole = sum(powers)
    return [power / whole for power in powers]


def train_on(at: int) -> None:
    for letter, chance in enumerate(chances(at)):
        slope = chance - (letter == codes[at])
        for back, table in enumerate(tables):
            row = table[codes[at - 1 - back]]
            row[letter] -= LEARNING_RATE * (slope + DECAY * row[letter])


random.seed(1)
held_out = [random.randrange(split + CONTEXT, len(codes)) for _ in range(400)]
os.makedirs("out", exist_ok=True)
step = 0
while not stopping:
    step += 1
    train_on(random.randrange(CONTEXT, split))
    if step % 2000 == 0:
        loss = -sum(math.log(chances(at)[codes[at]]) for at in held_out) / len(held_out)
        print(f"step {step} val_loss={loss:.4f}", flush=True)
        with open(f"out/step-{step}.pkl", "wb") as file:
            pickle.dump({"step": step, "tables": tables}, file)
