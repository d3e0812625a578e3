"""Run a public script to one of four endings, by the line that ``try`` prints, and judge the best.

``make own-public PUBLIC_PATH=FOLDER`` plays the cells that have no result yet and writes
docs/soak/public-scripts.md; ``make own-public-more`` those of ``public_more.py``.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.e2e.user import ROOT, User, kill
from tests.kept_state import read_state, write_state
from tests.own.public import CELLS, ENDINGS, PUBLIC, Public, Saved
from tests.own.public_more import MORE, MORE_CELLS, page_of_rule
from tests.waiting import until

OWN = ROOT / ".venv-own"
_BUDGET_USD = "0.60"
"""Ten minutes at 3.60 USD per hour: more than any of the scripts needs."""
_SETTLED_S = 6
_TRY_S = 20
Cells = dict[str, tuple[Public, str]]
_TABLES: dict[str, tuple[Sequence[Public], Cells, str]] = {
    "public": (PUBLIC, CELLS, "make own-public"),
    "more": (MORE, MORE_CELLS, "make own-public-more"),
}


@dataclass(frozen=True)
class Result:
    verdict: str
    """best; unsure, among N; WRONG; nothing came home; no run."""
    detail: str
    seconds: float

    @property
    def is_right(self) -> bool:
        return self.verdict == "best" or self.verdict.startswith("unsure, among")


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
    given = dict(pair.format(folder=folder).split("=", 1) for pair in row.env)
    return User(folder, cwd=folder / "project", environment={"PATH": path, **given})


# -- the line of a trial ---------------------------------------------------------------------------


def line_of_trial(row: Public, user: User, ending: str) -> list[str]:
    """Return the words of the line that ``try`` prints."""
    options = ["--for", str(_TRY_S), "--grace", "10", "--metric", row.metric, "--best", row.best]
    options += ["--rate", "3.60", "--budget", _BUDGET_USD]
    for pair in row.env:
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


def run_cell(row: Public, ending: str, sources: Path, folder: Path) -> Result:
    began = time.monotonic()
    (folder / "project").mkdir()
    make_project(row, sources, folder / "project")
    user = make_user(row, folder)
    versions = Versions(user.home, row.saves)
    try:
        words = line_of_trial(row, user, ending)
        versions.start()
        out = _end(row, user, ending, words, versions)
        versions.end()
        verdict, detail = _judge(row, user, versions, out)
    except MissError as miss:
        verdict, detail = miss.args
    finally:
        versions._ended.set()
        user.end_everything()
    return Result(verdict, detail, time.monotonic() - began)


def _end(row: Public, user: User, ending: str, words: list[str], versions: Versions) -> str:
    """The printed line as it is, with ``-y`` in the place of the answer to its question."""
    place = words.index("--")
    process = user.start(*words[:place], "-y", *words[place:])
    if ending != "finished":
        _wait_for_saves(row, process, versions)
        if process.poll() is not None:
            raise MissError("not judged", "it ended before it could be stopped")
        if ending == "stopped":
            user.stop()
        else:
            for pid in _trainers(user):
                kill(pid)
    out, err = process.communicate(timeout=600)
    assert "Traceback" not in err, err
    if ending == "resumed" and process.returncode:  # it did not go on by its --resume
        code, more, err = user.ended("resume", user.only_run().run_id, "-y", within_s=600)
        if code not in (0, 30):
            raise MissError("no run", f"resume ended with {code}: {more[-300:]} {err[-300:]}")
        out += more
    if ending == "finished" and process.returncode not in (0, 30):
        log = _log(user)
        raise MissError(
            "no run", f"ended with {process.returncode}: {out[-300:]} {err[-300:]} {log[-500:]}"
        )
    return out


def _trainers(user: User) -> list[int]:
    return [pid for word in ("python",) for pid in user.pids(".py") if pid]


def _wait_for_saves(row: Public, process: subprocess.Popen[str], versions: Versions) -> None:
    def has_saved() -> bool:
        if process.poll() is not None:
            raise MissError("no run", f"it ended by itself: {process.communicate()}")
        return versions.count() >= 2 * len(row.saves)

    if row.saves_once:
        time.sleep(15)
        return
    until(has_saved, what="two saves")
    time.sleep(_SETTLED_S)


def _log(user: User) -> str:
    paths = sorted(user.home.glob("runs/*/train/train.log"))
    return "".join(path.read_text(encoding="utf-8", errors="replace") for path in paths)


# -- the judgement ---------------------------------------------------------------------------------


def _judge(row: Public, user: User, versions: Versions, out: str) -> tuple[str, str]:
    [work] = user.home.glob("runs/*/train/work")
    saved = row.record(_log(user), work)
    if not versions.of:
        return "nothing was saved", "the script had not saved"
    code, text, err = user.ended("fetch-best", "--into", "best", "--json")
    if code:
        return "nothing came home", f"{code}: {err.strip()[-300:]} {out.strip()[-200:]}"
    document: dict[str, Any] = json.loads(text)
    told = [document["folder"], *(rival["folder"] for rival in document["rivals"])]
    folders = [user.here / folder for folder in told]
    values = [_value_of(row, folder, versions, saved) for folder in folders]
    _open(row, folders)
    alone = row.saves_once or not saved
    best = saved[0].value if alone else _best(row, saved, versions)
    carried = (document["metric"] or {}).get("value")
    about = f"true best {best:g}; came {', '.join(f'{value:g}' for value in values)}"
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
        raise MissError("not judged", f"{[p.name for p in weights]} is no save that was seen")
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


# -- the page --------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--table", choices=tuple(_TABLES), default="public")
    parser.add_argument("--sources", type=Path, required=True)
    parser.add_argument("--page", type=Path, required=True)
    parser.add_argument("--date", required=True)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", default="", help="a part of ROW-ENDING")
    parser.add_argument("--again", action="store_true", help="play those that missed again")
    parser.add_argument("--keep", type=Path, help="a folder for the homes, which are kept")
    parser.add_argument("--state", type=Path, required=True)
    given = parser.parse_args()
    _, cells, _ = _TABLES[given.table]
    corpus = {"corpus": given.table}
    results: dict[str, Any] = read_state(given.state, corpus, results={})["results"]

    def is_due(name: str) -> bool:
        if given.only not in name:
            return False
        return name not in results or (given.again and not Result(**results[name]).is_right)

    def work(name: str) -> None:
        row, ending = cells[name]
        folder = tempfile.mkdtemp(prefix=f"{name}-", dir=given.keep)
        try:
            result = run_cell(row, ending, given.sources, Path(folder))
        except Exception as error:
            result = Result("not judged", f"{type(error).__name__}: {error}", 0.0)
        finally:
            if not given.keep:
                shutil.rmtree(folder, ignore_errors=True)
        results[name] = asdict(result)
        print(f"{name}: {result}", flush=True)

    with ThreadPoolExecutor(given.jobs) as pool:
        for _ in pool.map(work, filter(is_due, sorted(cells, key=lambda name: _turn(name, cells)))):
            write_state(given.state, corpus | {"results": results})
    page = page_of({k: Result(**v) for k, v in results.items()}, given.date, given.table)
    given.page.write_text(page)


def _turn(name: str, cells: Cells) -> int:
    """One ending of every script comes before the next one of any, and finished ones last."""
    row, _ = cells[name]
    return ([each for each, (other, _) in cells.items() if other is row].index(name) - 1) % 4


def page_of(results: dict[str, Result], date: str, table: str) -> str:
    public, cells, target = _TABLES[table]
    lines = []
    for name, (row, ending) in cells.items():
        if (result := results.get(name)) is not None:
            said = " ".join(result.detail.split()).replace("|", "\\|")[:240]
            lines.append(
                f"| {row.name} | {ending} | {result.verdict} | {said} | {result.seconds:.0f} |"
            )
    played = {name: result for name, result in results.items() if name in cells}
    count = Counter(result.verdict for result in played.values())
    rows = [
        f"| [{row.repository}](https://github.com/{row.repository}/tree/{row.commit}) |"
        f" {row.name} |"
        f" {', '.join(map(str, row.kinds))} | {'yes' if row.is_api else 'no'} |"
        for row in public
    ]
    return _PAGE.format(
        target=target,
        rule=page_of_rule() if table == "more" else "",
        date=date,
        played=len(played),
        all=len(cells),
        counts="; ".join(f"{verdict}: {n}" for verdict, n in sorted(count.items())),
        endings=", ".join(
            f"{sum(cells[name][1] == ending for name in played)} {ending}" for ending in ENDINGS
        ),
        rows="\n".join(rows),
        table="\n".join(lines),
        missing=", ".join(name for name in cells if name not in results) or "none",
    )


_PAGE = """# Public scripts under `trmcloud run`

`{target}`, {date}: {played} of {all} cells played ({endings}). {counts}.

Each script is tried with `trmcloud try` and its metric, `--best`, `--rate` and `--budget`. The
line that it prints is typed unchanged, but for `-y` in the place of an answer. A stopped run is
stopped with `trmcloud stop` after two saves; a killed one loses its processes by SIGKILL; a
resumed one is killed and continues with its own `--resume` or by `trmcloud resume`. The true
best is the best value in the script's own record. The bytes that came home are compared with
the hashes of every save, taken while the script ran, and opened with their framework. A script
that saves once, at its end, has no other save to be taken for its best. Results stay when code
changes; docs/log.md says what was mended between them.
{rule}
| repository | script | kinds | metric through an API |
|---|---|---|---|
{rows}

| script | ending | verdict | values | seconds |
|---|---|---|---|---|
{table}

Not played, or to be played again: {missing}.
"""

if __name__ == "__main__":
    main()
