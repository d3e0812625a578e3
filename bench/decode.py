"""Decoding beside earlier commits: tokens a CPU-second, one thread each.

``python -m bench decode`` takes the packages of earlier commits out of this repository's history
into folders that are removed again: of c011e30 for ``trm-tiny``, and of 8b970be, the last one
without a step of its own for one text, for two shapes of ``gpt``, which c011e30 lacks. Both sides
draw from fresh weights of one recipe, in a process of its own, in turns. A round's ratio is of
neighbours in time, and the median counts. CPU-seconds, user's and system's, since a busy machine
gives a process its time in turns; loading is over before they are counted.
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

BEFORE, BEFORE_STEPS = "c011e30", "8b970be"
ROUNDS = 7
TOGETHER = 8
_LEAST_TIMES = 2.0
_ROOT = Path(__file__).parents[1]

_BEGIN = """
import sys, time, tomllib
import torch
torch.set_num_threads(1)
where = "model/recipes/{recipe}.toml"
recipe = tomllib.loads(open(where, encoding="utf-8").read())
"""
_FIRST = """
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
from dataclasses import replace
from model.families import registry
from model.families.drawing import make_sampler
from model.families.protocol import Sampling
from trmcloud.core.spec.recipe import parse_recipe
registry.provide_families()
phase = "train" if "train" in recipe["phases"] else "fast"
settings = parse_recipe(recipe, where).resolve(phase, hardware="local", gpus=1)
settings = replace(settings, **{changes})
cpu = torch.device("cpu")
model = registry.build(settings, cpu)
model.initialise(0)
model.eval()
def sampling(tokens, seed):
    return Sampling(tokens, 1.0, 32, 1.0, seed, settings.vocab_size, -1)
def draw(texts, tokens):
    if texts == 1:
        return len(list(model.generate([1], sampling(tokens, 0))))
    rows = make_sampler(model, texts, cpu)
    for seed in range(texts):
        rows.add([1], sampling(tokens, seed))
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
_BPE = (
    "dict(width=256, head_dim=64, vocab_size=2048, sequence=128, tokenizer='bpe', mlp='swiglu', "
    "qk_norm=False)"
)

_GPT = (("shakespeare", "{}", 60, 1.5), ("gpt 4 × 256", _BPE, 112, 1.25))
"""Name, changes, tokens and the least ratio; the wider one's time is mostly its weights' way from
memory, 17 MB a token."""


def run() -> Iterator[Row]:
    """``trm-tiny``'s one text, and eight that go through the model together, against one of then;
    and one text of each ``gpt``.

    Raises:
        SystemExit: this is no clone that has the commits.
    """
    with tempfile.TemporaryDirectory() as folder:
        first, before = Path(folder) / BEFORE, Path(folder) / BEFORE_STEPS
        for commit, into in ((BEFORE, first), (BEFORE_STEPS, before)):
            _take_out(commit, into)
        now = _program("trm-tiny", _NOW, "{}")
        then = _program("trm-tiny", _FIRST)
        yield from _rows("trm-tiny", BEFORE, (then, first), now, 112, _LEAST_TIMES, TOGETHER)
        for name, changes, tokens, least in _GPT:
            both = _program("shakespeare", _NOW, changes)
            yield from _rows(name, BEFORE_STEPS, (both, before), both, tokens, least)


def _program(recipe: str, body: str, changes: str = "") -> str:
    made = (_BEGIN + body).replace("{recipe}", recipe).replace("{changes}", changes)
    return made + _ASKED


def _rows(
    name: str,
    commit: str,
    before: tuple[str, Path],
    program: str,
    tokens: int,
    least: float,
    together: int = 0,
) -> Iterator[Row]:
    """One text, and so many that are drawn together, against one text of an earlier commit; all
    within the recipe's sequence."""
    with ExitStack() as both:
        then = both.enter_context(_side(*before))
        now = both.enter_context(_side(program, _ROOT))
        asked = [(then, 1), (now, 1), *([(now, together)] if together else [])]
        for side in (then, now):
            _rate(side, 1, tokens)
        rates = []
        for number in range(ROUNDS):
            order = asked if number % 2 else asked[::-1]
            made = {id(each): _rate(*each, tokens) for each in order}
            rates.append([made[id(each)] for each in asked])
    medians = [statistics.median(each) for each in zip(*rates, strict=True)]
    load = f"{ROUNDS} rounds in turns, load {os.getloadavg()[0]:.1f}"
    texts = ["one text"] + [f"{together} together"] * bool(together)
    for at, what in enumerate(texts, 1):
        ratio = statistics.median(row[at] / row[0] for row in rates)
        detail = f"{medians[at]:,.0f} against {medians[0]:,.0f} tokens a CPU-second, {load}"
        yield Row(f"{name}, {what}, ÷ {commit}'s", ratio, least, "higher", "×", detail)


def _take_out(commit: str, folder: Path) -> None:
    made = subprocess.run(
        ["git", "-C", str(_ROOT), "archive", commit, "model", "trmcloud"], capture_output=True
    )
    if made.returncode:
        raise SystemExit(f"commit {commit} is not here: bench decode wants a whole clone")
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


def _rate(side: subprocess.Popen[str], texts: int, tokens: int) -> float:
    """Tokens a CPU-second."""
    assert side.stdin is not None
    assert side.stdout is not None
    print(texts, tokens, file=side.stdin, flush=True)
    return float(side.stdout.readline())
