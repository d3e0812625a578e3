"""The page of ``make ray``: what its tests have seen, as a document."""

from __future__ import annotations

import argparse
import os
import platform
from importlib.metadata import version
from pathlib import Path

PAGE = """\
# Sweeps on Ray

`make ray` · {date} · Ray {ray}, Python {python}, {cores} cores

`trmcloud sweep local --on ray` with a real Ray on this machine; trials are a small script. The
second source is Ray Tune itself: its `ResultGrid` reads the experiment that Tune has kept. Nodes of
the cluster are raylets of one machine, which share its disk; a cluster of several machines and GPUs
were not tried.

| what | seen |
|---|---|
{rows}
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("rows", type=Path)
    parser.add_argument("--date", required=True)
    asked = parser.parse_args()
    print(
        PAGE.format(
            date=asked.date,
            ray=version("ray"),
            python=platform.python_version(),
            cores=len(os.sched_getaffinity(0)),
            rows=asked.rows.read_text(encoding="utf-8").rstrip(),
        ),
        end="",
    )


if __name__ == "__main__":
    main()
