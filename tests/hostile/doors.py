"""The doors that look at a tree, and what each of them may start, write and connect to."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.hostile.contents import WORDS, Tree
from tests.hostile.watch import Talk

GRANT = "agent"
RUN = "first"
"""The name of the finished run in every home."""
OUT = "outputs"
"""A folder of the tree that a door may be asked to write into."""
TINY = (
    "--recipe", "trm-tiny", "--rate", "3.60", "--budget", "1", "--set", "depth=1", "--set",
    "width=32", "--set", "vocab_size=512", "--set", "sequence=64", "--set", "eval_tokens=1024",
)  # fmt: skip
QUICK = ("--checkpoints", "out", "--checkpoint-gb", "0.001", "--grace", "2")


@dataclass(frozen=True)
class Visit:
    """What is typed at a door. ``start`` is the folder, below the tree.

    ``outputs`` are places below the tree that it may write to. ``runs_command``: the user's own
    command is run; ``installs``: packages are installed for it on this machine.
    """

    door: str
    words: tuple[str, ...]
    start: str = ""
    outputs: tuple[str, ...] = ()
    runs_command: bool = False
    installs: bool = False
    talk: Talk | None = None
    is_private: bool = False
    """The only requirements file names an index of its own, for a name that is private."""
    has_sky: bool = False
    """The user has SkyPilot's command."""
    has_quick_trainer: bool = False
    """The trainer is the stand-in that the other tests use, for its speed."""


def _start(tree: Tree, rng: random.Random) -> str:
    return rng.choice(tree.starts) if tree.starts and rng.random() < 0.7 else ""


def _pip(tree: Tree, rng: random.Random) -> tuple[str, ...]:
    return ("--pip", rng.choice(tree.pip)) if tree.pip and rng.random() < 0.9 else ()


def _data(tree: Tree, rng: random.Random) -> tuple[str, ...]:
    if tree.data and rng.random() < 0.6:
        return ("--data", rng.choice(tree.data))
    return ("--data", "data") if rng.random() < 0.2 else ()


def _root(tree: Tree, start: str, rng: random.Random) -> tuple[str, ...]:
    return ("--root", "../" * (start.count("/") + 1)) if start and rng.random() < 0.3 else ()


def plan(tree: Tree, rng: random.Random) -> Visit:
    start = _start(tree, rng)
    if tree.recipes and rng.random() < 0.5:
        words = ("plan", "--recipe", rng.choice(tree.recipes), "--budget", "5", *_data(tree, rng))
        return Visit("plan", words, start)
    hardware = rng.choice(((), (), ("--hardware", "1xA100"), ("--gpus", "1"), ("--all",)))
    shown = rng.choice(((), (), ("--json",), ("-v",)))
    words = ("plan", *hardware, *shown, "--budget", "5", *_data(tree, rng), "--", *WORDS)
    return Visit("plan", words, start)


def try_(tree: Tree, rng: random.Random) -> Visit:
    start = _start(tree, rng)
    words = ("try", "--for", "1", "--grace", "1", *rng.choice(((), ("--json",))), *_pip(tree, rng))
    words += (
        *_data(tree, rng),
        *_root(tree, start, rng),
        *rng.choice(((), ("--checkpoints", "out"))),
    )
    return Visit("try", (*words, "--", *WORDS), start, runs_command=True)


def dry_run(tree: Tree, rng: random.Random) -> Visit:
    start = _start(tree, rng)
    has_sky = rng.random() < (0.6 if tree.has_sky else 0.1)
    hardware = rng.choice((("local", "--rate", "3.6"), ("any",), ("1xH100",), ("1xA100",)))
    if has_sky:
        hardware = ("1xA100", "--via", "skypilot")
    words = ("run", *hardware, "--budget", "2", "--dry-run", *rng.choice(((), ("--json",))))
    words += (*_pip(tree, rng), *_data(tree, rng), *_root(tree, start, rng))
    if tree.has_project_file and not has_sky:
        words = ("launch", *rng.choice(((), hardware)), "--budget", "2", "--dry-run")
        return Visit("run --dry-run", words, start)
    return Visit("run --dry-run", (*words, "--", *WORDS), start, has_sky=has_sky)


def launch(tree: Tree, rng: random.Random) -> Visit:
    start = _start(tree, rng)
    if rng.random() < 0.3:
        data = _data(tree, rng) or ("--data", "data")
        words = ("launch", "local", *TINY, *data, "--phase", "fast", "--steps", "10", "-y")
        return Visit("launch local", words, start, has_quick_trainer=rng.random() < 0.7)
    pip = _pip(tree, rng) if rng.random() < 0.25 else ()
    words = (
        "run",
        "local",
        "--rate",
        "3.6",
        "--budget",
        "1",
        *QUICK,
        *pip,
        *_data(tree, rng),
        "-y",
    )
    return Visit(
        "launch local", (*words, "--", *WORDS), start, runs_command=True, installs=bool(pip)
    )


def export(tree: Tree, rng: random.Random) -> Visit:
    form = rng.choice(("bash", "bash", "sbatch", "sky"))
    hardware = "1xA100" if form == "sky" else rng.choice(("local", "1xA100"))
    recipe = (
        ("--recipe", rng.choice(tree.recipes)) if tree.recipes and rng.random() < 0.6 else TINY[:2]
    )
    data = _data(tree, rng) or ("--data", rng.choice(("data", "python-stdlib")))
    rate = ("--rate", "3.60") if hardware == "local" else ()
    target = rng.choice((f"{OUT}.yaml", f"{OUT}.sh"))
    words = ("export", hardware, "--as", form, *recipe, *rate, "--budget", "1", *data, "-o", target)
    outputs = (f"{OUT}.yaml", f"{OUT}.sh")
    is_quick = rng.random() < 0.8
    return Visit("export", words, _start(tree, rng), outputs=outputs, has_quick_trainer=is_quick)


def mcp(tree: Tree, rng: random.Random) -> Visit:
    start = _start(tree, rng)
    pip, data = _pip(tree, rng), _data(tree, rng)
    named = {"pip": pip[1]} if pip else {}
    if data:
        named["data"] = data[1]
    if start:
        named["folder"] = start
    own: dict[str, Any] = {"command": list(WORDS), **named}
    local = {
        **own, "hardware": "local", "rate": "3.60", "budget": "0.05", "grace": 2.0,
        "checkpoints": "out", "checkpoint_gb": 0.001,
    }  # fmt: skip
    rented = {**own, "hardware": rng.choice(("any", "1xH100")), "budget": "1"}
    calls: list[tuple[str, dict[str, Any]]] = []
    drawn = rng.random()
    runs = drawn < 0.35
    if runs:
        calls.append(("try", {**own, "for_s": 1.0, "grace": 1.0}))
    calls.append(("plan", local if runs or rng.random() < 0.4 else rented))
    if drawn < 0.12:
        calls.append(("launch", {"quote": "$quote", "idempotency_key": "one"}))
        calls.append(("status", {"run": "$run"}))
        calls.append(("stop", {"run": "$run"}))
    elif rng.random() < 0.3:
        calls.append(("fetch", {"run": RUN, "into": OUT}))
    hello = {
        "protocolVersion": "2025-06-18", "capabilities": {},
        "clientInfo": {"name": "hostile", "version": "1"},
    }  # fmt: skip
    requests: list[dict[str, Any]] = [
        {"method": "initialize", "params": hello},
        {"method": "notifications/initialized"},
        *(
            {"method": "tools/call", "params": {"name": name, "arguments": given}}
            for name, given in calls
        ),
    ]
    words = ("mcp", "--grant", GRANT, "--folder", ".")
    installs = drawn < 0.12 and bool(pip)
    return Visit(
        "mcp", words, outputs=(OUT,), runs_command=runs, installs=installs, talk=Talk(requests)
    )


def fetch_best(tree: Tree, rng: random.Random) -> Visit:
    into = f"{OUT}/{rng.choice(('a', 'b/c'))}" if rng.random() < 0.3 else OUT
    words = (
        "fetch-best",
        RUN,
        "--into",
        into,
        *rng.choice(((), ("--json",), ("--for-inference",))),
    )
    if rng.random() < 0.15:
        words = (*words, "--step", str(rng.choice((0, 1, 2, 3))))
    return Visit("fetch-best", words, outputs=(OUT, f"{OUT}.partial"))


DOORS: Mapping[str, Callable[[Tree, random.Random], Visit]] = {
    "plan": plan,
    "try": try_,
    "run --dry-run": dry_run,
    "launch local": launch,
    "export": export,
    "mcp": mcp,
    "fetch-best": fetch_best,
}


def doors_of(number: int) -> tuple[str, str]:
    """The two doors that tree ``number`` is taken through."""
    first, second = random.Random(f"doors {number}").sample(list(DOORS), 2)
    return first, second


def visit_of(number: int, door: str, tree: Tree) -> Visit:
    visit = DOORS[door](tree, random.Random(f"visit {number} {door}"))
    is_private = tree.replaces_index and tree.pip == ["requirements.txt"] * len(tree.pip)
    return replace(visit, is_private=is_private)


# -- programs ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Code:
    """A checkout of trmcloud with an environment of its own in ``.venv``."""

    folder: Path

    @property
    def python(self) -> str:
        return str(self.folder / ".venv" / "bin" / "python")

    @property
    def trmcloud(self) -> str:
        return str(self.folder / ".venv" / "bin" / "trmcloud")

    @property
    def pythons(self) -> frozenset[str]:
        """Its interpreter, by each of its names."""
        return frozenset(f"{self.python}{tail}" for tail in ("", "3", "3.11", "3.12", "3.13"))

    @property
    def uv(self) -> str:
        return str(self.folder / ".venv" / "bin" / "uv")
