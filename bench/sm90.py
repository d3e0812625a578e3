"""What the trainer compiles, compiled for an H100 without one: ``make bench-sm90 CUDA_PYTHON=…``.

Inductor and Triton make of each part of a recipe's model what they would on the GPU, down to the
cubins of Triton's own ptxas; ``compiled_parts`` says how, ``absent_driver`` what stands for the
driver. Nothing is launched: it shows that the kernels can be had, and what registers and memory
they take, and says nothing about their speed. ``CUDA_PYTHON`` is the Python of an environment with
torch's CUDA build (default: this one); ``RECIPES`` names others than all, ``TABLE`` a CSV of every
configuration of each kernel, written anew.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import astuple, fields
from pathlib import Path

from bench.cubins import Cubin, Graph
from bench.row import Row

RECIPES = ("gpt350m", "d24", "speedrun", "d64", "trm", "bd3lm", "hdp")
_LIMIT_S = 1800
_NEEDED = """
import importlib.util, shutil, torch
if torch.version.cuda is None:
    print(f"torch {torch.__version__} is built without CUDA")
elif importlib.util.find_spec("triton") is None:
    print(f"torch {torch.__version__} has no Triton beside it")
elif shutil.which("cc") is None:
    print("there is no C compiler")
"""
_BUILT = """
import sys; from pathlib import Path; from bench.absent_driver import library
print(library(Path(sys.argv[1])))
"""


def run() -> Iterator[Row]:
    """
    Raises:
        SystemExit: torch is built without CUDA, or Triton or a C compiler is missing.
    """
    python = os.environ.get("CUDA_PYTHON") or sys.executable
    wanted = os.environ.get("RECIPES", "").split() or RECIPES
    why = _told(python, "-c", _NEEDED)
    if why:
        raise SystemExit(
            f"{why}: name an environment with torch's CUDA build and gcc: "
            "make bench-sm90 CUDA_PYTHON=/path/to/python"
        )
    made: list[tuple[str, Graph]] = []
    for recipe in wanted:
        with tempfile.TemporaryDirectory() as scratch:
            graphs, failed = _compiled(python, recipe, Path(scratch))
        made += [(recipe, each) for each in graphs]
        yield from _rows(recipe, graphs, failed)
    if table := os.environ.get("TABLE"):
        _write(Path(table), made)


def _told(*command: str) -> str:
    """
    Raises:
        SystemExit: it fails; with the last line of what it said.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise SystemExit(f"CUDA_PYTHON={command[0]}: {error.strerror}") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise SystemExit(f"CUDA_PYTHON={command[0]}: {last}")
    return done.stdout.strip()


def _compiled(python: str, recipe: str, scratch: Path) -> tuple[list[Graph], str]:
    """The graphs of a recipe's model, and why that is not all of them; in a process and with caches
    of its own, so that all is compiled."""
    environment = {
        **os.environ,
        "LD_PRELOAD": _told(python, "-c", _BUILT, str(scratch)),
        "TORCHINDUCTOR_CACHE_DIR": str(scratch / "inductor"),
        "TRITON_CACHE_DIR": str(scratch / "triton"),
    }
    words = [python, "-m", "bench.compiled_parts", recipe]
    try:
        done = subprocess.run(
            words, env=environment, capture_output=True, text=True, timeout=_LIMIT_S
        )
    except subprocess.TimeoutExpired:
        return [], f"not done after {_LIMIT_S} s"
    graphs = [Graph.from_json(json.loads(each)) for each in done.stdout.splitlines()]
    failed = (done.stderr.strip().splitlines() or ["it does not say why"])[-1]
    return graphs, failed if done.returncode else ""


def _rows(recipe: str, graphs: list[Graph], failed: str = "") -> Iterator[Row]:
    kernels = sum(len(each.kernels) for each in graphs)
    cubins = sum(len(each.cubins) for each in graphs)
    refused = sum(len(each.refused) for each in graphs)
    told = f"{len(graphs)} graphs, {cubins} configurations of {kernels} kernels, {refused} refused"
    name = f"{recipe}: compiled for sm_90, kernels"
    yield Row(name, 0 if failed else kernels, max(kernels, 1), "higher", "", failed or told)
    spilling = [name for each in graphs for name in _always_spilling(each)]
    some = sum(each.spilled_bytes > 0 for graph in graphs for each in graph.cubins)
    told = ", ".join(spilling) or f"{some} of their configurations do"
    yield Row(f"{recipe}: kernels that can but spill", len(spilling), 0, "lower", "", told)


def _always_spilling(graph: Graph) -> list[str]:
    """Kernels without a configuration that does not."""
    lean = {each.kernel for each in graph.cubins if not each.spilled_bytes}
    return list(dict.fromkeys(each.kernel for each in graph.cubins if each.kernel not in lean))


def _write(path: Path, made: list[tuple[str, Graph]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["recipe", "part", "way", *(each.name for each in fields(Cubin))])
        for recipe, graph in made:
            for cubin in graph.cubins:
                table.writerow([recipe, graph.part, graph.way, *astuple(cubin)])
