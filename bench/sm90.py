"""What the trainer compiles, compiled for an H100 without one: ``make bench-sm90 CUDA_PYTHON=…``.

Inductor and Triton make of each part of a recipe's model what they would on the GPU, down to the
cubins of Triton's own ptxas; ``compiled_parts`` says how, ``absent_driver`` what stands for the
driver. Nothing is launched: it shows that the kernels can be had, and what registers and memory
they take, and says nothing about their speed. ``CUDA_PYTHON`` is the Python of an environment with
torch's CUDA build (default: this one); ``RECIPES`` names others than all, ``TABLE`` a page whose
figures are written anew, and beside it each kernel's in a CSV.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass, field, fields
from pathlib import Path
from typing import Any

from bench.cubins import Cubin
from bench.graphs import GRAPHS, PLAIN, Graph
from bench.row import Row

RECIPES = ("gpt350m", "d24", "speedrun", "d64", "trm", "bd3lm", "hdp")
FIGURES = "## Figures"
"""The page's last heading: what stands below it is written anew."""
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


@dataclass
class Compiled:
    """What came of one recipe."""

    recipe: str
    versions: Mapping[str, str] = field(default_factory=dict)
    graphs: list[Graph] = field(default_factory=list)
    failed: str = ""
    """Why not all of it could be compiled."""

    def of(self, mode: str) -> list[Graph]:
        return [each for each in self.graphs if each.mode == mode]


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
    made = []
    for recipe in wanted:
        with tempfile.TemporaryDirectory() as scratch:
            made.append(_compiled(python, recipe, Path(scratch)))
        yield from _rows(made[-1])
    if page := os.environ.get("TABLE"):
        _write(Path(page), made)


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


def _compiled(python: str, recipe: str, scratch: Path) -> Compiled:
    """In a process of its own, and with caches of its own, so that all is compiled."""
    environment = {
        **os.environ,
        "LD_PRELOAD": _told(python, "-c", _BUILT, str(scratch)),
        "TORCHINDUCTOR_CACHE_DIR": str(scratch / "inductor"),
        "TRITON_CACHE_DIR": str(scratch / "triton"),
    }
    made = Compiled(recipe)
    try:
        done = subprocess.run(
            [python, "-m", "bench.compiled_parts", recipe],
            env=environment,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        made.failed = f"not done after {_LIMIT_S} s"
        return made
    lines = [json.loads(each) for each in done.stdout.splitlines()]
    made.versions, made.graphs = lines[0] if lines else {}, [*map(Graph.from_json, lines[1:])]
    if done.returncode:
        made.failed = (done.stderr.strip().splitlines() or ["it does not say why"])[-1]
    return made


def _rows(made: Compiled) -> Iterator[Row]:
    graphs = made.of(PLAIN)
    kernels = sum(len(each.kernels) for each in graphs)
    cubins = sum(len(each.cubins) for each in graphs)
    refused = sum(len(each.refused) for each in graphs)
    told = f"{len(graphs)} graphs, {cubins} configurations of {kernels} kernels, {refused} refused"
    yield Row(
        f"{made.recipe}: compiled for sm_90, kernels",
        0 if made.failed else kernels,
        max(kernels, 1),
        "higher",
        "",
        made.failed or told,
    )
    spilling = [name for each in graphs for name in _always_spilling(each)]
    yield Row(
        f"{made.recipe}: kernels that can but spill",
        len(spilling),
        0,
        "lower",
        "",
        ", ".join(spilling) or f"{_spilling(graphs)} of their configurations do",
    )


def _by_kernel(graph: Graph) -> dict[str, list[Cubin]]:
    found: dict[str, list[Cubin]] = defaultdict(list)
    for each in graph.cubins:
        found[each.kernel].append(each)
    return found


def _always_spilling(graph: Graph) -> list[str]:
    """Kernels without a configuration that does not."""
    return [
        kernel
        for kernel, cubins in _by_kernel(graph).items()
        if all(each.spilled_bytes for each in cubins)
    ]


def _spilling(graphs: Iterable[Graph]) -> int:
    return sum(each.spilled_bytes > 0 for graph in graphs for each in graph.cubins)


# -- the page -------------------------------------------------------------------------------------


def _write(page: Path, made: list[Compiled]) -> None:
    """Its figures, below ``FIGURES``; what stands above them stays."""
    above = page.read_text(encoding="utf-8").partition(FIGURES)[0] if page.is_file() else ""
    page.write_text(f"{above}{FIGURES}\n\n{as_markdown(made)}", encoding="utf-8")
    with page.with_suffix(".csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["recipe", "part", "way", *(each.name for each in fields(Cubin))])
        for one in made:
            for graph in one.of(PLAIN):
                for cubin in graph.cubins:
                    table.writerow([one.recipe, graph.part, graph.way, *astuple(cubin)])


def as_markdown(made: list[Compiled]) -> str:
    """A line for each graph; registers and shared memory are of the leanest configuration of the
    kernel that takes most."""
    versions = {json.dumps(dict(one.versions), sort_keys=True) for one in made if one.versions}
    told = "; ".join(
        ", ".join(f"{name} {version}" for name, version in json.loads(each).items())
        for each in sorted(versions)
    )
    lines = [
        f"{told}.\n",
        "| recipe | part | kernels | configurations | that spill | registers | shared memory | "
        "kernels of libraries |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in made:
        lines += [_line(one.recipe, each) for each in one.of(PLAIN)]
        if one.failed:
            lines.append(f"| {one.recipe} | **failed**: {one.failed} | | | | | | |")
    notes = [*_notes(made)]
    return "\n".join([*lines, "", *notes]).rstrip() + "\n"


def _line(recipe: str, graph: Graph) -> str:
    kernels = _by_kernel(graph).values()
    registers = max((min(each.registers for each in one) for one in kernels), default=0)
    shared = max((min(each.shared_bytes for each in one) for one in kernels), default=0)
    calls = ", ".join(
        f"{name.lstrip('_').replace('_', ' ')}{f' × {count}' if count > 1 else ''}"
        for name, count in graph.calls.items()
    )
    cells: list[Any] = [
        recipe,
        f"{graph.part}, {graph.way}{', of any rows' if graph.varies else ''}",
        len(graph.kernels),
        len(graph.cubins),
        _spilling([graph]),
        registers,
        f"{shared / 1024:.3g} KiB" if shared >= 1024 else f"{shared} B",
        calls or "none",
    ]
    return f"| {' | '.join(map(str, cells))} |"


def _notes(made: list[Compiled]) -> Iterator[str]:
    """What a table has no room for."""
    spills = [
        f"- {one.recipe}, {graph.part} {graph.way}, `{kernel}`: "
        + ", ".join(f"{each.spilled_bytes:,} B with {each.registers} registers" for each in cubins)
        for one in made
        for graph in one.of(PLAIN)
        for kernel, cubins in _by_kernel(graph).items()
        if any(each.spilled_bytes for each in cubins)
    ]
    yield from _list("Spilled in each configuration of kernels in which any does", spills)
    refused = [
        f"- {one.recipe}, {graph.part} {graph.way}: {each}"
        for one in made
        for graph in one.of(PLAIN)
        for each in graph.refused
    ]
    yield from _list("Configurations that were not compiled", refused)
    timed = [
        f"- {one.recipe}, {graph.part} {graph.way}: {', '.join(graph.timed)}"
        for one in made
        for graph in one.of(PLAIN)
        if graph.timed
    ]
    yield from _list(
        "Products that Inductor would time with padding and without, here without", timed
    )
    skipped = [
        f"- {one.recipe}, {graph.part} {graph.way}: {', '.join(graph.no_cuda_graph)}"
        for one in made
        for graph in one.of(GRAPHS)
        if graph.no_cuda_graph
    ]
    checked = sum(len(one.of(GRAPHS)) for one in made)
    title = f"Not eligible as CUDA graphs, by Inductor's checks when it compiles ({checked} graphs)"
    yield from _list(title, skipped)


def _list(title: str, lines: list[str]) -> Iterator[str]:
    yield from (f"{title}:\n", *lines, "") if lines else (f"{title}: none.\n",)
