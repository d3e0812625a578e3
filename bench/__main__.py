"""Runs every benchmark, or those named: ``python -m bench cli overhead``."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from model.families.registry import provide_families

NAMES = sorted(
    path.stem
    for path in Path(__file__).parent.glob("*.py")
    if path.stem
    not in (
        *("__init__", "__main__", "absent_driver", "calibration", "compiled_parts", "copies"),
        *("cubins", "empty_app", "graphs", "launched", "long_ledger", "row"),
    )
)
#: Need something named to be measured against.
ASKED_FOR = ("control", "decode", "history", "own", "reach", "sm90", "train")


def main() -> int:
    wanted = sys.argv[1:] or [name for name in NAMES if name not in ASKED_FOR]
    provide_families()
    missed = 0
    for name in wanted:
        if name not in NAMES:
            print(f"no benchmark {name!r}: {', '.join(NAMES)}", file=sys.stderr)
            return 2
        print(f"— {name}", flush=True)
        for row in importlib.import_module(f"bench.{name}").run():
            print(row, flush=True)
            missed += not getattr(row, "met", True)
    print(f"{missed} figures missed" if missed else "every figure met")
    return 0


if __name__ == "__main__":
    sys.exit(main())
