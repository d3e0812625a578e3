"""Run a public script to one of four endings, by the line that ``try`` prints, and judge the best.

``make own-public PUBLIC_PATH=FOLDER`` plays the cells that have no verdict on this code yet, adds
them to tests/own/public_results.json and writes docs/soak/public-scripts.md.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.e2e.user import ROOT, User, kill
from tests.own.public import CELLS, ENDINGS, PUBLIC, Public, Saved
from tests.own.public_more import MORE, MORE_CELLS, page_of_rule
from tests.targets import hash_of as hash_of_files
from tests.waiting import until
from trmcloud.core.errors import NO_CHECKPOINT_CODE, Outcome
from trmcloud.io.files import write_atomic

OWN = ROOT / ".venv-own"
_GRACE_S = 10
_LANDING_S = 9
"""Reserved by the plan to land, beside the grace."""
_LIVES_S = {"stopped": 50}
"""How long the budget lets a command run at 3.60 USD per hour; else it is more than any needs."""
_SETTLED_S = 6
_TRY_S = 20
_ENV = ("OMP_NUM_THREADS=1",)
"""Two threads of a script wait for each other where the cores are shared with other work."""
_NOT_JUDGED = "not judged"
"""By a fault of this file or of a row, which is no verdict: the cell is played again."""
_NOTHING_SAVED = "nothing was saved"
Cells = Mapping[str, tuple[Public, str]]


@dataclass(frozen=True)
class Table:
    """Scripts, their cells, the target that plays them, and what its page says of their choice."""

    rows: Sequence[Public]
    cells: Cells
    target: str
    rule: Callable[[], str]


TABLES = {
    "public": Table(PUBLIC, CELLS, "make own-public", str),
    "more": Table(MORE, MORE_CELLS, "make own-public-more", page_of_rule),
}


@dataclass(frozen=True)
class Play:
    cell: str
    code: str
    """Of the product, the hash of which is ``hash_of_code``."""
    verdict: str
    """best; unsure, among N; WRONG; nothing was saved; nothing came home; and rarer ones."""
    detail: str
    seconds: float
    cause: str = ""
    """Of a miss, or of a fault of this file or of a row; added by a person."""

    @property
    def is_unsure(self) -> bool:
        return self.verdict.startswith("unsure")

    @property
    def is_miss(self) -> bool:
        right = ("best", _NOTHING_SAVED, _NOT_JUDGED)
        return self.verdict not in right and not self.verdict.startswith("unsure, among")


class MissError(Exception):
    """What a user would call a miss: the verdict and its detail."""


# -- the project -----------------------------------------------------------------------------------


def make_project(row: Public, sources: Path, project: Path) -> None:
    """Copy what the row takes of its repository, with its data and its replacements."""
    source = sources / row.source
    assert source.is_dir(), f"no checkout {source}"
    for path in row.paths or (".",):
        name = Path(path).relative_to(row.folder) if row.folder else Path(path)
        target = project / name
        if (source / path).is_dir():
            shutil.copytree(
                source / path, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".git")
            )
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source / path, target)
    for patch in row.patches:
        text = (project / patch.file).read_text(encoding="utf-8")
        assert patch.old in text, f"{patch.file} has no {patch.old!r}"
        (project / patch.file).write_text(text.replace(patch.old, patch.new), encoding="utf-8")
    if row.data:
        subprocess.run(
            [str(OWN / "bin" / "python"), "-m", "tests.own.public_data", row.data, str(project)],
            check=True,
            capture_output=True,
            cwd=ROOT,
        )


def make_user(row: Public, folder: Path) -> User:
    path = os.pathsep.join([str(OWN / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
    pairs = (*_ENV, *(pair.format(folder=folder) for pair in row.env))
    given = dict(pair.split("=", 1) for pair in pairs)
    return User(folder, cwd=folder / "project", environment={"PATH": path, **given})


# -- the line of a trial ---------------------------------------------------------------------------


def line_of_trial(row: Public, user: User, ending: str) -> list[str]:
    """Return the words of the line that ``try`` prints."""
    budget_usd = 0.001 * (_LIVES_S.get(ending, 600) + _GRACE_S + _LANDING_S)
    options = ["--for", str(_TRY_S), "--grace", str(_GRACE_S), "--metric", row.metric]
    options += row.order
    options += ["--rate", "3.60", "--budget", f"{budget_usd:.3f}"]
    for pair in (*row.env, *_ENV):
        options += ["--env", pair.partition("=")[0]]
    if row.resume and ending == "resumed":
        options += ["--resume", _resumed_command(row)]
    code, out, err = user.ended("try", *options, "--", *shlex.split(row.command))
    lines = [line for line in out.splitlines() if line.startswith("trmcloud run ")]
    if len(lines) != 1:
        raise MissError(
            "no run", f"try ended with {code} and printed no line: {out[-600:]} {err[-300:]}"
        )
    return shlex.split(lines[0])[1:]


def _resumed_command(row: Public) -> str:
    if row.command.startswith("bash -c '"):
        return row.command[:-1] + f" {row.resume}'"
    return f"{row.command} {row.resume}"


# -- every save, hashed ----------------------------------------------------------------------------


class Versions(threading.Thread):
    """The hashes of each file that a script saves, in order, by polling its working folder."""

    def __init__(self, home: Path, patterns: Sequence[str]) -> None:
        super().__init__(daemon=True)
        self._home, self._patterns = home, patterns
        self._seen: dict[Path, tuple[int, int, int]] = {}
        self._hashed: dict[Path, tuple[int, int, int]] = {}
        self.of: dict[str, list[str]] = defaultdict(list)
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(0.1):
            with contextlib.suppress(FileNotFoundError):  # a folder went while it was listed
                self.look()

    def look(self) -> None:
        for path in self._files():
            with contextlib.suppress(FileNotFoundError):
                stat = path.stat()
                state = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
                if state == self._seen.get(path) != self._hashed.get(path):
                    digest = hash_of(path)
                    after = path.stat()
                    if state == (after.st_ino, after.st_size, after.st_mtime_ns):
                        self._note(path, digest)
                        self._hashed[path] = state
                self._seen[path] = state

    def end(self) -> None:
        self._ended.set()
        self.join()
        self.look()
        self.look()

    def count(self) -> int:
        return sum(map(len, self.of.values()))

    def _note(self, path: Path, digest: str) -> None:
        name = str(path).partition("/train/work/")[2]
        if digest not in self.of[name]:
            self.of[name].append(digest)

    def _files(self) -> Iterator[Path]:
        for pattern in self._patterns:
            yield from self._home.glob(f"runs/*/train/work/{pattern}")


def hash_of(path: Path) -> str:
    with open(path, "rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


# -- an ending -------------------------------------------------------------------------------------


def run_cell(row: Public, ending: str, sources: Path, folder: Path) -> tuple[str, str]:
    """Return the verdict and its detail."""
    row = row.endless() if ending in ("stopped", "killed") else row
    (folder / "project").mkdir()
    make_project(row, sources, folder / "project")
    user = make_user(row, folder)
    versions = Versions(user.home, row.saves)
    try:
        words = line_of_trial(row, user, ending)
        versions.start()
        out = _end(row, user, ending, words, versions)
        versions.end()
        return _judge(row, user, versions, out)
    except MissError as miss:
        verdict, detail = miss.args
        return verdict, detail
    finally:
        versions._ended.set()
        user.end_everything()


def _end(row: Public, user: User, ending: str, words: list[str], versions: Versions) -> str:
    """The printed line as it is, with ``-y`` in the place of the answer to its question."""
    place = words.index("--")
    process = user.start(*words[:place], "-y", *words[place:])
    if ending in ("killed", "resumed"):
        _wait_for_saves(row, process, versions, 2 if ending == "killed" else 1)
        scripts = user.pids(_script_of(row))
        if process.poll() is not None or not scripts:
            raise MissError(_NOT_JUDGED, "it ended before it could be killed")
        for pid in scripts:
            kill(pid)
    out, err = process.communicate(timeout=700)
    code = process.returncode
    assert "Traceback" not in err, err
    if ending == "resumed" and code:  # it did not go on by its --resume
        code, more, err = user.ended("resume", user.only_run().run_id, "-y", within_s=700)
        out += more
    wanted = _CODES[ending].exit_code
    if code not in (wanted, NO_CHECKPOINT_CODE):
        text = f"ended with {code}, not {wanted}: {out[-300:]} {err[-300:]} {_log(user)[-500:]}"
        raise MissError(_NOT_JUDGED if ending == "stopped" and code == 0 else "no run", text)
    return out


_CODES = {
    "finished": Outcome.FINISHED,
    "stopped": Outcome.LANDED,
    "killed": Outcome.FAILED,
    "resumed": Outcome.FINISHED,
}


def _script_of(row: Public) -> str:
    """The first one: what follows may be a configuration."""
    return str(re.findall(r"\S+\.py\b", row.command)[0])


def _wait_for_saves(
    row: Public, process: subprocess.Popen[str], versions: Versions, count: int
) -> None:
    """Until there are ``count`` saves and time in which the newest of them is copied."""

    def has_saved() -> bool:
        if process.poll() is not None:
            raise MissError(_NOT_JUDGED, f"it ended by itself: {process.communicate()}")
        return versions.count() >= count * _files_of_a_save(row)

    if row.saves_once:
        time.sleep(15)
        return
    until(has_saved, what=f"{count} saves")
    time.sleep(_SETTLED_S if count > 1 else _SETTLED_S / 2)


def _files_of_a_save(row: Public) -> int:
    return max(Counter(Path(pattern).parent for pattern in row.saves).values())


def _log(user: User) -> str:
    paths = sorted(user.home.glob("runs/*/train/train.log"))
    return "".join(path.read_text(encoding="utf-8", errors="replace") for path in paths)


# -- the judgement ---------------------------------------------------------------------------------


def _judge(row: Public, user: User, versions: Versions, out: str) -> tuple[str, str]:
    [work] = user.home.glob("runs/*/train/work")
    code, text, err = user.ended("fetch-best", "--into", "best", "--json")
    if not versions.of:
        if not code:
            return "WRONG", f"the script had not saved, and this came home: {text[:200]}"
        return _NOTHING_SAVED, "the script had not saved"
    saved = row.record(_log(user), work)
    if not saved:
        raise MissError(_NOT_JUDGED, f"no record of {dict(versions.of)}: {_log(user)[-200:]}")
    if code:
        return "nothing came home", f"{code}: {err.strip()[-300:]} {out.strip()[-200:]}"
    document: dict[str, Any] = json.loads(text)
    told = [document["folder"], *(rival["folder"] for rival in document["rivals"])]
    folders = [user.here / folder for folder in told]
    values = [_value_of(row, folder, versions, saved) for folder in folders]
    _open(row, folders)
    best = _best(row, saved, versions)
    carried = (document["metric"] or {}).get("value")
    about = f"true best {best:g}; came {', '.join(f'{value:g}' for value in values)}"
    seen, made = versions.count(), len(saved)
    about += f" ({seen} of {made} saves seen)" if seen < made else ""
    about += f"; told {document['metric']['name']} {carried:g}" if carried is not None else ""
    if len(values) > 1:
        if best in values and len(values) <= 3:
            return f"unsure, among {len(values)}", about
        return "unsure, without the best", about
    return ("best" if values[0] == best else "WRONG"), about


def _best(row: Public, saved: Sequence[Saved], versions: Versions) -> float:
    """Of the saves of which a whole file was seen."""
    values = [
        each.value
        for name, hashes in versions.of.items()
        for each in _of_file(name, saved)[-len(hashes) :]
    ]
    return max(values) if row.best == "max" else min(values)


def _of_file(name: str, saved: Sequence[Saved]) -> list[Saved]:
    return [each for each in saved if fnmatch.fnmatch(name, each.file)]


def _value_of(row: Public, folder: Path, versions: Versions, saved: Sequence[Saved]) -> float:
    """The metric of the save whose bytes came home, by the script's own record."""
    names = [pattern.rpartition("/")[2] for pattern in row.saves]
    files = [path for path in (folder / "own").rglob("*") if path.is_file()]
    weights = [path for path in files if any(fnmatch.fnmatch(path.name, name) for name in names)]
    if not weights:
        raise MissError("WRONG", f"no weights came home, but {sorted(p.name for p in files)}")
    values = set()
    for path in weights:
        digest = hash_of(path)
        for name, hashes in versions.of.items():
            if digest in hashes:
                of_file = _of_file(name, saved)
                from_end = len(hashes) - hashes.index(digest)
                if from_end <= len(of_file):
                    values.add(of_file[-from_end].value)
    if not values:
        raise MissError(_NOT_JUDGED, f"{[p.name for p in weights]} is no save that was seen")
    if len(values) > 1 and len(weights) == 1:
        return (max if row.best == "max" else min)(values)  # equal bytes have an equal value
    if len(values) > 1:
        raise MissError("WRONG", f"files of several saves in one checkpoint: {sorted(values)}")
    return values.pop()


def _open(row: Public, folders: Sequence[Path]) -> None:
    """With their own framework, in a process of its environment."""
    words = [row.opener, "0", *(str(folder / "own") for folder in folders)]
    path = os.pathsep.join([str(ROOT), str(folders[0].parent), str(folders[0].parent / "project")])
    done = subprocess.run(
        [str(OWN / "bin" / "python"), "-m", "tests.own.openers", *words],
        capture_output=True,
        text=True,
        timeout=200,
        cwd=folders[0].parent,
        env={**os.environ, "PYTHONPATH": path, "KERAS_BACKEND": "torch"},
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    bad = [line for line in lines if "step" not in line]
    if bad or len(lines) != len(folders):
        raise MissError("does not open", f"{bad} {done.stderr[-300:]}")


# -- the results -----------------------------------------------------------------------------------


def hash_of_code() -> str:
    """Of every file of the product."""
    files = [path for path in (ROOT / "trmcloud").rglob("*") if path.is_file()]
    return hash_of_files(sorted(path for path in files if path.suffix != ".pyc"))


def read_plays(path: Path) -> list[Play]:
    if not path.exists():
        return []
    return [Play(**line) for line in json.loads(path.read_text(encoding="utf-8"))]


def write_plays(path: Path, plays: Sequence[Play]) -> None:
    lines = ",\n".join(json.dumps(asdict(play)) for play in plays)
    write_atomic(path, f"[\n{lines}\n]\n")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sources", type=Path, required=True)
    parser.add_argument("--table", choices=TABLES, default="public")
    parser.add_argument("--page", type=Path, required=True)
    parser.add_argument("--date", required=True)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument(
        "--only", default="", help="patterns of ROW-ENDING, with commas; - plays none"
    )
    parser.add_argument("--again", action="store_true", help="those that missed, too")
    parser.add_argument("--keep", type=Path, help="a folder for the homes of those that missed")
    parser.add_argument("--results", type=Path, required=True)
    given = parser.parse_args()
    code, table = hash_of_code(), TABLES[given.table]

    def is_due(name: str) -> bool:
        last = judged(read_plays(given.results), code, table.cells).get(name, [])
        chosen = (given.only or "*").split(",")
        return any(fnmatch.fnmatch(name, pattern) for pattern in chosen) and (
            not last or (given.again and (last[-1].is_miss or bool(last[-1].cause)))
        )

    def work(name: str) -> Play:
        row, ending = table.cells[name]
        began, folder = time.monotonic(), tempfile.mkdtemp(prefix=f"{name}-", dir=given.keep)
        try:
            verdict, detail = run_cell(row, ending, given.sources, Path(folder))
        except Exception as error:
            verdict, detail = _NOT_JUDGED, f"{type(error).__name__}: {error}"
        detail = re.sub(rf"\S*{re.escape(Path(folder).name)}", "~", detail)  # may begin cut off
        detail = " ".join(detail.replace(str(ROOT), ".").split())
        play = Play(name, code, verdict, detail[:600], round(time.monotonic() - began))
        if not given.keep or verdict in ("best", _NOTHING_SAVED):
            shutil.rmtree(folder, ignore_errors=True)
        return play

    lock = threading.Lock()

    def play_and_note(name: str) -> None:
        play = work(name)
        print(f"{name}: {play}", flush=True)
        with lock:
            plays = [*read_plays(given.results), play]
            write_plays(given.results, plays)
            given.page.write_text(page_of(plays, code, given.date, table), encoding="utf-8")

    due = [n for n in sorted(table.cells, key=lambda name: _turn(name, table)) if is_due(n)]
    with ThreadPoolExecutor(given.jobs) as pool:
        list(pool.map(play_and_note, due))
    given.page.write_text(
        page_of(read_plays(given.results), code, given.date, table), encoding="utf-8"
    )


def _turn(name: str, table: Table) -> tuple[int, bool]:
    """One cell of every script comes before the second one of any, and those of an API first.
    With which ending a script begins differs between scripts."""
    row, _ = table.cells[name]
    own = [each for each, (other, _) in table.cells.items() if other is row]
    return (own.index(name) + table.rows.index(row)) % len(own), not row.is_api


def judged(plays: Sequence[Play], code: str, cells: Cells = CELLS) -> dict[str, list[Play]]:
    """By cell, in order, the plays on this code that have a verdict."""
    found = defaultdict(list)
    for play in plays:
        if play.code == code and play.cell in cells and play.verdict != _NOT_JUDGED:
            found[play.cell].append(play)
    return found


# -- the page --------------------------------------------------------------------------------------


def page_of(plays: Sequence[Play], code: str, date: str, table: Table = TABLES["public"]) -> str:
    """Return the page about this code: the last verdicts, the first ones' totals, every miss."""
    of_cell = judged(plays, code, table.cells)
    lines = [
        f"| {row.name} | {ending} | {last.verdict} | {_in_cell(last.detail)} | {last.seconds:g} |"
        for name, (row, ending) in table.cells.items()
        for last in of_cell.get(name, [])[-1:]
    ]
    misses = [
        f"| {play.cell} | `{play.code}` | {play.verdict} | {_in_cell(play.detail)} |"
        f" {_in_cell(play.cause) or 'not yet known'} |"
        for play in plays
        if play.is_miss or play.cause
    ]
    rows = [
        f"| [{row.repository}](https://github.com/{row.repository}/tree/{row.commit}) |"
        f" {row.name} |"
        f" {', '.join(map(str, row.kinds))} | {'yes' if row.is_api else 'no'} |"
        for row in table.rows
    ]
    first = [found[0] for found in of_cell.values()]
    last = [found[-1] for found in of_cell.values()]
    return _PAGE.format(
        target=table.target,
        rule=table.rule(),
        date=date,
        code=code,
        played=len(of_cell),
        all=len(table.cells),
        endings=", ".join(
            f"{sum(table.cells[name][1] == ending for name in of_cell)} {ending}"
            for ending in ENDINGS
        ),
        counts="; ".join(
            f"{verdict}: {n}" for verdict, n in sorted(Counter(p.verdict for p in first).items())
        ),
        goals="\n".join(_goals(first, last, table.cells)),
        rows="\n".join(rows),
        table="\n".join(lines),
        misses="\n".join([_MISSES, *misses]) if misses else "None.",
        missing=", ".join(name for name in table.cells if name not in of_cell) or "none",
    )


def _in_cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")[:300]


def _goals(first: Sequence[Play], last: Sequence[Play], cells: Cells) -> Iterator[str]:
    """A row of each goal, of those cells whose script had saved something."""

    def share(plays: Sequence[Play], counts: Callable[[Play], bool]) -> str:
        saved = [play for play in plays if play.verdict != _NOTHING_SAVED]
        n = sum(map(counts, saved))
        return f"{n} of {len(saved)}" + (f" ({100 * n / len(saved):.0f} %)" if saved else "")

    def of_api(plays: Sequence[Play]) -> list[Play]:
        return [play for play in plays if cells[play.cell][0].is_api]

    def is_right(play: Play) -> bool:
        return not play.is_miss

    def is_unsure(play: Play) -> bool:
        return play.is_unsure

    def is_wrong(play: Play) -> bool:
        return play.verdict == "WRONG"

    for goal, limit, counts, choose in (
        ("best, or unsure with the best among at most three", "≥ 95 %", is_right, list),
        ("unsure", "≤ 20 %", is_unsure, list),
        ("unsure, metric through an API", "0", is_unsure, of_api),
        ("a wrong one called best", "0", is_wrong, list),
    ):
        first_share, last_share = (share(choose(plays), counts) for plays in (first, last))
        yield f"| {goal} | {limit} | {first_share} | {last_share} |"


_MISSES = """| cell | code | verdict | values | cause |
|---|---|---|---|---|"""

_PAGE = """# Public scripts under `trmcloud run`

`{target}`, {date}, product code `{code}` (SHA-256 of the files of `trmcloud/`): {played} of
{all} cells played ({endings}). First verdicts: {counts}.

| goal | limit | first verdicts | last verdicts |
|---|---|---|---|
{goals}

The shares are of the cells whose script had saved something. A cell is played again only after a
miss, or where the harness or the row was at fault; its first verdict stays in the totals and in the
list of misses.

Each script is tried with `trmcloud try` and its metric, `--rate`, `--budget` and `--env
OMP_NUM_THREADS`; `--best` is not given, because each metric's name tells the direction. The line
that `try` prints is typed unchanged, but for `-y` in the place of an answer. A stopped run is a
longer training that its budget ends after about a minute; a killed one loses its processes by
SIGKILL after two saves; a resumed one is killed likewise, continues with its own `--resume` or by
`trmcloud resume`, and finishes. The true best is the best value in the script's own record. The
bytes that came home are compared with the hashes of every save, taken while the script ran, and
opened with their framework. A script that saves once, at its end, has no other save to be taken for
its best, and nothing to bring home before it.
{rule}
| repository | script | kinds | metric through an API |
|---|---|---|---|
{rows}

| script | ending | verdict | values | seconds |
|---|---|---|---|---|
{table}

Not played, or without a verdict: {missing}.

## Misses

{misses}
"""

if __name__ == "__main__":
    main()
