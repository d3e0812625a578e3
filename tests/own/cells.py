"""Run a script of the corpus to one of three endings, and check what came home.

``make own-all`` runs them all and writes docs/soak/own.md.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.drawn import tenth
from tests.e2e.user import ROOT, User, kill
from tests.kept_state import read_state, write_state
from tests.own.corpus import CORPUS, Script
from tests.targets import TARGETS, hash_of, paths_of
from tests.waiting import until
from trmcloud.core.errors import NO_CHECKPOINT_CODE, Outcome

OWN = ROOT / ".venv-own"
ENDINGS = ("finishes", "stopped", "killed")
_CODES = {"finishes": 0, "stopped": Outcome.LANDED.exit_code, "killed": Outcome.FAILED.exit_code}
_ENDLESS = 1_000_000
_GRACE_S = 10
_LANDING_S = 9
"""Reserved by the plan to land, beside the grace."""
_SETTLED_S = 6
"""Longer than the watcher waits for a file to stop changing."""
_NOTHING_SAVED = re.compile(r"no checkpoint|saved nothing", re.I)


@dataclass(frozen=True)
class Cell:
    """The result of one ending, as the page shows it."""

    came: str
    metric: str
    seconds: float


def environment(script: Script) -> dict[str, str]:
    folders = [Path(sys.executable).parent, os.environ["PATH"]]
    if not script.is_light:
        folders.insert(0, OWN / "bin")
    return {"PATH": os.pathsep.join(map(str, folders))}


def run_cell(script: Script, ending: str, folder: Path) -> Cell:
    """Raises AssertionError with what is wrong."""
    began = time.monotonic()
    project = folder / "project"
    project.mkdir()
    for name in script.files:
        shutil.copy(ROOT / "tests" / "own" / "scripts" / name, project)
    user = User(folder, cwd=project, environment=environment(script))
    try:
        out = _end(user, script, ending)
        came, metric = _judge(user, script, ending, out)
    finally:
        user.end_everything()
    return Cell(came, metric, time.monotonic() - began)


def _end(user: User, script: Script, ending: str) -> str:
    """stdout of ``trmcloud run``."""
    lives_s = script.starts_in_s + 25 if ending == "stopped" else 600
    budget_usd = 0.001 * (lives_s + _GRACE_S + _LANDING_S)
    process = user.start(
        *("run", "local", "--rate", "3.60", "--budget", f"{budget_usd:.3f}"),
        *("--grace", str(_GRACE_S), "--checkpoint-gb", "0.01", "--checkpoints", script.checkpoints),
        *("--metric", script.metric, "--best", script.best, "-y", "--"),
        *script.words(script.steps if ending == "finishes" else _ENDLESS),
    )
    if ending == "killed":
        _wait_for_saves(user, script, process)
        for pid in user.pids(script.files[0]):
            kill(pid)
    out, err = process.communicate(timeout=240)
    bare = ending != "killed" and not _saves(user, script)
    expected = NO_CHECKPOINT_CODE if bare else _CODES[ending]
    assert process.returncode == expected, f"exit {process.returncode}\n{out}\n{err}"
    assert "Traceback" not in err, err
    return out


def _wait_for_saves(user: User, script: Script, process: subprocess.Popen[str]) -> None:
    def has_saved() -> bool:
        assert process.poll() is None, f"it ended by itself: {process.communicate()}"
        return len(_saves(user, script)) >= (1 if script.saves_once else 2)

    until(has_saved, what=lambda: f"a save: {_log(user)[-2000:]}")
    time.sleep(_SETTLED_S)


def _saves(user: User, script: Script) -> list[Path]:
    return list(user.home.glob(f"runs/*/train/work/{script.saves}"))


def _log(user: User) -> str:
    texts = [
        path.read_text(encoding="utf-8", errors="replace")
        for path in user.home.glob("runs/*/train/train.log")
    ]
    return "".join(texts)


def _judge(user: User, script: Script, ending: str, out: str) -> tuple[str, str]:
    if not _saves(user, script):
        assert _NOTHING_SAVED.search(out), f"it does not say that nothing was saved:\n{out}"
        return "nothing, and it says so", "–"
    log = _log(user)
    kept = user.checkpoints()
    assert kept, f"none of {_saves(user, script)} came home:\n{out}\n{log[-2000:]}"
    fetched = [_fetch(user, "best")]
    best = json.loads((fetched[0] / "manifest.json").read_text())
    for manifest in kept.values():
        if manifest.step != best["step"]:
            fetched.append(_fetch(user, f"kept-{manifest.step}", "--step", str(manifest.step)))
    steps = script.steps if ending == "finishes" else _ENDLESS
    opened = opened_with(script, steps, [path / "own" for path in fetched])
    [work] = user.home.glob("runs/*/train/work")
    truth = script.truth(log, work)
    told = []
    for path, about in zip(fetched, opened, strict=True):
        where = f"{path.name} ({_names(path)}): {about}"
        assert "error" not in about, where
        if "not_found" in about and path.name != "best":
            continue  # an archive of what else is new
        assert "not_found" not in about, where
        step = about["step"] if about["step"] is not None else script.steps
        assert script.saves_once or path.name != "best" or step in truth or not truth, (
            f"{where}: nothing was logged at {step}, so it cannot be the best of {dict(truth)}"
        )
        told.append(_compare(path, step, truth.get(step), where))
    return _names(fetched[0]), told[0]


def _fetch(user: User, name: str, *options: str) -> Path:
    user.run("fetch-best", "--into", name, *options)
    assert user.cwd is not None
    return user.cwd / name


def _names(fetched: Path) -> str:
    """Of what came home: each file, and each folder with the number of its files."""
    told = []
    for entry in sorted((fetched / "own").iterdir()):
        count = sum(path.is_file() for path in entry.rglob("*"))
        told.append(f"{entry.name}/ ({count} files)" if entry.is_dir() else entry.name)
    return ", ".join(told)


def _compare(fetched: Path, step: int, logged: str | None, where: str) -> str:
    """The metric that it carries has to be the logged one, to the digits that were logged, or to
    seven: a file of the framework may have more than the line that was read."""
    manifest: dict[str, Any] = json.loads((fetched / "manifest.json").read_text())
    carried = manifest["extra"].get("metric", {}).get("value")
    if logged is None:
        assert carried is None, f"{where}: nothing was logged at {step}, it carries {carried}"
        return f"step {step}: none logged, none carried"
    assert carried is not None, f"{where}: {logged} was logged at {step}, it carries none"
    digits, _, exponent = logged.partition("e")
    unit = 10.0 ** (int(exponent or 0) - len(digits.partition(".")[2]))
    unit = max(unit, abs(float(logged)) * 1e-6)
    assert abs(carried - float(logged)) <= 0.51 * unit, (
        f"{where}: {logged} was logged at step {step}, it carries {carried}"
    )
    return f"step {step}: {logged} = {carried:.6g}"


def opened_with(script: Script, steps: int, folders: Sequence[Path]) -> list[dict[str, Any]]:
    """Their own framework, in a process of its environment."""
    python = sys.executable if script.is_light else str(OWN / "bin" / "python")
    done = subprocess.run(
        [python, "-m", "tests.own.openers", script.opener, str(steps)]
        + [str(folder) for folder in folders],
        capture_output=True,
        text=True,
        timeout=200,
        cwd=ROOT,
        env=os.environ | environment(script),
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(lines) == len(folders), f"{done.stdout}\n{done.stderr}"
    return [json.loads(line) for line in lines]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--page", type=Path, required=True)
    parser.add_argument("--date", required=True)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="", help="a part of ROW-ENDING")
    parser.add_argument("--tenth", action="store_true", help="a drawn tenth of the cells")
    parser.add_argument("--state", type=Path, required=True, help="JSON: the cells that passed")
    given = parser.parse_args()
    cells = {f"{s.name}-{ending}": (s, ending) for s in CORPUS for ending in ENDINGS}
    chosen = [name for name in cells if given.only in name]
    chosen = tenth(chosen) if given.tenth else chosen
    asked = {"code": hash_of(paths_of(TARGETS["corpus"]))}
    rows: dict[str, str] = read_state(given.state, asked, rows={})["rows"]

    def work(name: str) -> None:
        script, ending = cells[name]
        with tempfile.TemporaryDirectory() as folder:
            try:
                cell = run_cell(script, ending, Path(folder))
                row = f"`{cell.came}` | {cell.metric} | {cell.seconds:.0f} |"
            except Exception as error:
                said = " ".join(str(error).split()).replace("|", "\\|")
                row = f"{_FAILS}: {said:.200} | – | – |"
        rows[name] = f"| {script.name} | {ending} | {row}"
        print(rows[name], flush=True)

    with ThreadPoolExecutor(given.jobs) as pool:
        for _ in pool.map(work, [name for name in chosen if name not in rows]):
            passed = {name: row for name, row in rows.copy().items() if _FAILS not in row}
            write_state(given.state, {**asked, "rows": passed})
    table = "\n".join(rows[name] for name in chosen)
    failed = table.count(_FAILS)
    given.page.write_text(
        _PAGE.format(date=given.date, count=len(chosen), failed=failed, table=table)
    )
    print(f"{len(chosen)} cells, {failed} failed")
    raise SystemExit(1 if failed else 0)


_FAILS = "**fails**"
_PAGE = """# Scripts of others under `trmcloud run`

`make own-all`, {date}: {count} cells, {failed} failed. Each script of `tests/own/scripts` finishes,
is stopped at its budget, or is killed. What came home was opened with its own framework, and its
metric compared with the one that the script itself logged for that step.

| script | ending | what came home | metric logged = carried | seconds |
|---|---|---|---|---|
{table}
"""

if __name__ == "__main__":
    main()
