"""Thirty failures of real trainings, each as small files and a command, and where a principal's
rehearsal stops them: its trial, or the plan. Nothing is rented for any.

    python -m tests.e2e.failures.corpus docs/soak/rehearsal.md 2026-11-27
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trmcloud.api import Home
from trmcloud.core.errors import TrmcloudError

FOR_S = 6.0
LOOP = """
import json, os, signal, sys, time
def save(step, path="out/step-%d.pt"):
    os.makedirs("out", exist_ok=True)
    open(path % step, "wb").write(b"x" * 2000)
for step in range(1, 40):
    time.sleep(0.2)
    print(f"step={step} train_loss={3 / step:.3f} val_loss={4 / step:.3f}", flush=True)
    if step % 3 == 0:
        save(step)
"""
RENTED: Mapping[str, Any] = {"hardware": "1xH100", "budget": "1"}


@dataclass(frozen=True)
class Failure:
    """``what`` went wrong; ``files`` by name; ``try_wish`` are options of ``try`` and ``run``,
    ``run_wish`` those of ``run`` alone; ``sparse``: files of that many bytes, of zeros."""

    name: str
    what: str
    files: Mapping[str, str]
    words: tuple[str, ...] = ("python", "train.py")
    try_wish: Mapping[str, Any] = field(default_factory=dict)
    run_wish: Mapping[str, Any] = field(default_factory=dict)
    sparse: Mapping[str, int] = field(default_factory=dict)
    here: str = ""


def script(text: str, **more: str) -> dict[str, str]:
    return {"train.py": text, **{name.replace("__", "."): body for name, body in more.items()}}


ARGPARSE = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr', type=float)\n"
DEAF = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + LOOP.replace("40", "400")
RESTARTS = LOOP.replace("range(1, 40)", "range(1, 400)")

FAILURES = (
    Failure(
        "wrong-flag", "a flag that the script does not have", script(ARGPARSE + "p.parse_args()"),
        ("python", "train.py", "--learning-rate", "1e-3"),
    ),
    Failure(
        "wrong-value", "a flag's value of another type", script(ARGPARSE + "p.parse_args()"),
        ("python", "train.py", "--lr", "fast"),
    ),
    Failure("missing-file", "a file that is nowhere", script("open('data/train.csv')\n" + LOOP)),
    Failure(
        "missing-package", "a package that is not installed",
        script("import a_package_that_is_nowhere\n" + LOOP),
    ),
    Failure(
        "ignored-file", "a file that .trmcloudignore leaves out",
        {**script("open('data.bin').read()\n" + LOOP), "data.bin": "x", ".trmcloudignore": "*.bin"},
    ),
    Failure(
        "data-elsewhere", "data read from an absolute path that is not sent",
        script("open('{beside}/data.csv').read()\n" + LOOP),
    ),
    Failure(
        "module-elsewhere", "a module beside the working folder",
        script("import sys\nsys.path.insert(0, '{beside}')\nimport helper_of_mine\n" + LOOP),
    ),
    Failure("syntax", "a syntax error", script("def train(:\n    pass\n")),
    Failure("python-2", "a script for Python 2", script("print 'training'\n")),
    Failure("wrong-script", "a mistyped script", script(LOOP), ("python", "trian.py")),
    Failure("wrong-program", "a mistyped program", script(LOOP), ("pyhton", "train.py")),
    Failure(
        "not-executable", "a shell script without the right to run",
        {**script(LOOP), "run.sh": "#!/bin/sh\npython train.py\n"}, ("./run.sh",),
    ),
    Failure(
        "wrong-key", "a key that the configuration does not have",
        script("import json\njson.load(open('c.json'))['learning_rate']\n", c__json='{"lr": 1}'),
    ),
    Failure(
        "damaged-config", "a configuration that is no JSON",
        script("import json\njson.load(open('c.json'))\n", c__json='{"lr": 1,}'),
    ),
    Failure(
        "no-variable", "a variable that is set in the user's shell alone",
        script("import os\nos.environ['WANDB_API_TOKEN']\n" + LOOP),
    ),
    Failure("asks", "a question on standard input", script("input('continue? ')\n" + LOOP)),
    Failure(
        "home-file", "a file of the user's home",
        script("import os\nopen(os.path.expanduser('~/.my-settings'))\n" + LOOP),
    ),
    Failure(
        "letter-case", "a file name in another case",
        {**script("open('Train.txt')\n" + LOOP), "train.txt": "x"},
    ),
    Failure(
        "crash-later", "an error after some steps",
        script(LOOP.replace("    if step % 3", "    [0, 1, 2][step]\n    if step % 3")),
    ),
    Failure(
        "no-steps", "an empty data set: no step at all", script("import sys\nsys.exit('no rows')")
    ),
    Failure(
        "wrong-metric", "a metric that the script never prints", script(LOOP),
        try_wish={"metric": "val_accuracy"},
    ),
    Failure(
        "bad-pattern", "a metric's pattern with two groups", script(LOOP),
        try_wish={"metric": "(val|train)_loss=([0-9.]+)"},
    ),
    Failure(
        "no-checkpoint", "checkpoints looked for where the script saves none", script(LOOP),
        try_wish={"checkpoints": "checkpoints"},
    ),
    Failure(
        "deaf", "a script that does not stop when it is asked to", script(DEAF),
        try_wish={"grace": 2.0},
    ),
    Failure(
        "wrong-resume", "a command to resume with a flag that is none",
        script(ARGPARSE + "p.parse_args()\n" + LOOP),
        try_wish={"resume": "python train.py --resume {checkpoint}"},
    ),
    Failure(
        "restarts", "a command to resume that begins again at step 1", script(RESTARTS),
        try_wish={"resume": "python train.py"},
    ),
    Failure(
        "too-large-tree", "a working folder that is too large to send", script(LOOP),
        sparse={"weights.bin": 80_000_000_000},
    ),
    Failure("no-files", "a folder without files", {}),
    Failure(
        "no-data", "a folder for --data that does not exist", script(LOOP),
        try_wish={"data": "data"},
    ),
    Failure(
        "too-large", "more memory than any GPU has", script(LOOP),
        run_wish={"hardware": "any", "memory": 4000.0},
    ),
)  # fmt: skip


def rehearse(home: Home, folder: Path, failure: Failure) -> str:
    """Lay the failure's files, try its command and plan its run as ``home``'s principal. Return
    what stopped it; empty where nothing did."""
    work, beside = folder / "work", folder / "beside"
    for place in (work, beside):
        place.mkdir(parents=True)
    (beside / "data.csv").write_text("1,2\n")
    (beside / "helper_of_mine.py").write_text("x = 1\n")
    for name, text in failure.files.items():
        (work / name).write_text(text.replace("{beside}", str(beside)))
    for name, size in failure.sparse.items():
        with open(work / name, "wb") as file:
            file.truncate(size)
    wish = dict(failure.try_wish)
    data = str(work / str(wish.pop("data"))) if "data" in wish else ""
    try:
        trial = home.try_command(failure.words, here=work, data=data, for_s=FOR_S, **wish)
    except TrmcloudError as error:
        return f"try is refused: {error}"
    if trial.has_failed:
        found = next(check for check in trial.checks if check.result.value == "failed")
        return f"{found.name}: {found.evidence}"
    more = {"data": data} if data else {}
    try:
        home.plan_command(
            failure.words, here=work, **{**RENTED, **failure.run_wish, **wish, **more}
        )
    except TrmcloudError as error:
        return f"plan is refused: {error}"
    return ""


def page(found: Mapping[str, str], date: str) -> str:
    stopped = sum(map(bool, found.values()))
    lines = [
        "# Rehearsal before money",
        "",
        "A principal's launch needs a trial of its command, with the same files, in which no check",
        f"failed. Here {len(found)} failures of real trainings are tried and planned. Nothing is",
        "rented for any.",
        "",
        f"- date: {date}",
        "- command: `make rehearsal`, on a machine without a GPU",
        f"- stopped: **{stopped} of {len(found)}**",
        "",
        "| failure | stopped by |",
        "|---|---|",
    ]
    for failure in FAILURES:
        told = found[failure.name].replace("|", "\\|")[:150] or "**not stopped**"
        lines.append(f"| {failure.what} | {told} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    found = {}
    with tempfile.TemporaryDirectory() as made:
        place = Path(made)
        os.environ["HOME"] = str(place)
        Home(place / "home").give_grant("agent", "2")
        home = Home(place / "home", principal="agent")
        for failure in FAILURES:
            told = rehearse(home, place / failure.name, failure)
            found[failure.name] = told.replace(str(place), "…").replace(f"~/{failure.name}", "…")
            print(f"{failure.name}: {found[failure.name] or 'NOT STOPPED'}", flush=True)
    if len(sys.argv) > 2:
        Path(sys.argv[1]).write_text(page(found, sys.argv[2]), encoding="utf-8")


if __name__ == "__main__":
    main()
