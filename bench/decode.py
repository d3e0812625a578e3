"""Decoding ``trm-tiny`` beside an earlier commit: tokens a CPU-second, one thread each.

``python -m bench decode`` takes commit c011e30's packages out of this repository's history into a
folder that is removed again. Both draw from fresh weights of the recipe as each has it, in a
process of its own, in turns; a round's ratio is of neighbours in time, and the median counts.
CPU-seconds, since a busy machine gives a process its time in turns.
"""

from __future__ import annotations

import io
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.row import Row

BEFORE = "c011e30"
ROUNDS = 5
TOGETHER = 8
_TOKENS = 112
"""With the prompt's one they stay within the recipe's sequence of 128."""
_LEAST_TIMES = 2.0
_ROOT = Path(__file__).parents[1]

_BEGIN = """
import sys, time, tomllib
import torch
torch.set_num_threads(1)
where = "model/recipes/trm-tiny.toml"
recipe = tomllib.loads(open(where, encoding="utf-8").read())
"""
_THEN = """
from types import SimpleNamespace
from model.sample import _generate
from model.trm import TRM, Shape
from trmcloud.core.recipe import parse_recipe
settings = parse_recipe(recipe, where).resolve("fast", hardware="local", gpus=1)
torch.manual_seed(0)
loaded = SimpleNamespace(
    settings=settings, device=torch.device("cpu"), model=TRM(Shape.of(settings)).eval(),
    tokenizer=SimpleNamespace(vocab_size=settings.vocab_size, bos=-1),
)
def draw(texts, tokens):
    assert texts == 1
    return len(list(_generate(loaded, [1], tokens, temperature=1.0, top_k=32, seed=0)))
"""
_NOW = """
from model.families import registry
from model.families.drawing import drawing
from model.families.protocol import Sampling
from trmcloud.core.spec.recipe import parse_recipe
registry.provide_families()
settings = parse_recipe(recipe, where).resolve("fast", hardware="local", gpus=1)
cpu = torch.device("cpu")
model = registry.build(settings, cpu)
model.initialise(0)
model.eval()
def draw(texts, tokens):
    rows = drawing(model, texts, cpu)
    for seed in range(texts):
        rows.add([1], Sampling(tokens, 1.0, 32, 1.0, seed, settings.vocab_size, -1))
    made = 0
    while step := rows.step():
        made += len(step)
    return made
"""
_ASKED = """
for line in sys.stdin:
    texts, tokens = map(int, line.split())
    begun = time.process_time()
    made = draw(texts, tokens)
    assert made == texts * tokens, made
    print(made / (time.process_time() - begun), flush=True)
"""


def run() -> Iterator[Row]:
    """One text, and eight that go through the model together, against one of then.

    Raises:
        SystemExit: this is no clone that has the commit.
    """
    with tempfile.TemporaryDirectory() as folder, ExitStack() as both:
        _take_out(Path(folder))
        then = both.enter_context(_side(_BEGIN + _THEN + _ASKED, Path(folder)))
        now = both.enter_context(_side(_BEGIN + _NOW + _ASKED, _ROOT))
        for side in (then, now):
            _rate(side, 1)
        rates = [
            (_rate(then, 1), _rate(now, 1), _rate(now, TOGETHER))
            if number % 2
            else (_rate(now, TOGETHER), _rate(now, 1), _rate(then, 1))[::-1]
            for number in range(ROUNDS)
        ]
    before, alone, together = (statistics.median(each) for each in zip(*rates, strict=True))
    load = f"{ROUNDS} rounds in turns, load {os.getloadavg()[0]:.1f}"
    for name, at, rate in (("one text", 1, alone), (f"{TOGETHER} together", 2, together)):
        ratio = statistics.median(row[at] / row[0] for row in rates)
        detail = f"{rate:,.0f} against {before:,.0f} tokens a CPU-second, {load}"
        yield Row(f"trm-tiny, {name}, ÷ {BEFORE}'s", ratio, _LEAST_TIMES, "higher", "×", detail)


def _take_out(folder: Path) -> None:
    made = subprocess.run(
        ["git", "-C", str(_ROOT), "archive", BEFORE, "model", "trmcloud"], capture_output=True
    )
    if made.returncode:
        raise SystemExit(f"commit {BEFORE} is not here: bench decode wants a whole clone")
    with tarfile.open(fileobj=io.BytesIO(made.stdout)) as archive:
        archive.extractall(folder)


@contextmanager
def _side(program: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that draws by ``program``, with the packages in ``folder``."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", program], cwd=folder, env=environment, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _rate(side: subprocess.Popen[str], texts: int) -> float:
    """Tokens a CPU-second."""
    assert side.stdin is not None
    assert side.stdout is not None
    print(texts, _TOKENS, file=side.stdin, flush=True)
    return float(side.stdout.readline())
