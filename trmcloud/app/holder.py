"""The operating-system user for whom a grant is: what it starts on this machine runs as that user.

A grant holds against its holder only where the holder cannot act as the ledger's owner. So a
command that it starts here is started as its own user, who can read neither the ledger nor the
provider's keys, and the working tree is read by that user as well: a link in it leads no further
than that user could go. What comes back is read as a stranger's: a plain file of that user, no
link, of bounded size.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pwd
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from trmcloud.app.trial import VERSION as TRIAL_VERSION
from trmcloud.app.trial import Trial, TrialBounds, keep_trial
from trmcloud.core.contract.records import ContractError, load
from trmcloud.core.errors import DataError, NotSupported, TrmcloudError, UsageError
from trmcloud.core.text import one_line
from trmcloud.core.values import dataclass

PROCESS = "trmcloud.app.holder_process"
ASKED_NAME, ANSWER_NAME, LOG_NAME = "asked.json", "answer.json", "log"
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MOST_ANSWER_BYTES = 1 << 20
_MOST_LOG_BYTES = 4 << 20
_MOST_TREE_BYTES = 4 << 30
_END_WITHIN_S = 30.0
_CHECK_S = 60.0
_SLACK_S = 900.0
"""Beyond a command's own time: its copy is made, and it is stopped and resumed."""
_MOST_LINE_BYTES = 1 << 16


@dataclass(frozen=True)
class Holder:
    """A user of this machine. ``is_self``: this process's own, where a grant guards against
    mistakes only."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    is_self: bool = False


UNKNOWN = Holder("", -1, -1, ())
"""Whoever holds the grant is not known: nothing is started on this machine."""


def holder_of(home: Path, run_as: str | None) -> Holder:
    """Return the user whom ``run_as`` names, who may be a number without an entry in passwd.

    Raises:
        UsageError: there is no such user, or it is the ledger's owner. NotSupported: this process
            cannot become that user, or the home is open to it.
    """
    if run_as is None:
        return Holder("", os.geteuid(), os.getegid(), (), is_self=True)
    if not run_as:
        return UNKNOWN
    try:
        entry = pwd.getpwuid(int(run_as)) if run_as.isdigit() else pwd.getpwnam(run_as)
        groups = tuple(os.getgrouplist(entry.pw_name, entry.pw_gid))
        found = Holder(entry.pw_name, entry.pw_uid, entry.pw_gid, groups)
    except (KeyError, OverflowError):
        if not run_as.isdigit() or int(run_as) >= 1 << 31:
            raise UsageError(
                f"there is no user {run_as[:80]!r} on this machine", next_step="run_as: its name"
            ) from None
        found = Holder(run_as, int(run_as), int(run_as), ())
    _require_apart(home, found)
    return found


def _require_apart(home: Path, holder: Holder) -> None:
    owners = {0, os.geteuid()}
    with contextlib.suppress(OSError):
        owners.add(home.stat().st_uid)
    if holder.uid in owners or 0 in (holder.gid, *holder.groups):
        raise UsageError(
            f"{holder.name} is the ledger's owner, or root: a grant holds only against others",
            next_step="give the agent a user of its own, and name that",
        )
    if os.geteuid() != 0:
        raise NotSupported(
            f"this process cannot start a command as {holder.name}",
            next_step="start it as root, which keeps the ledger; or without run_as, where a grant "
            "guards against mistakes only",
        )
    with contextlib.suppress(FileNotFoundError):
        about = home.stat()
        mine = about.st_gid in (holder.gid, *holder.groups)
        if about.st_mode & 0o007 or (mine and about.st_mode & 0o070):
            raise NotSupported(
                f"{home} is open to {holder.name}: it could read the ledger and the keys",
                next_step=f"chmod 700 {home}",
            )


def require_known(holder: Holder, what: str) -> None:
    """
    Raises:
        NotSupported: it is not known as whom ``what`` would run.
    """
    if holder is UNKNOWN:
        raise NotSupported(
            f"{what} is refused: it is not known which user of this machine holds the grant",
            next_step="start the server with --as USER",
        )


# -- try -------------------------------------------------------------------------------------------


def try_as(
    holder: Holder,
    home: Path,
    python_path: Sequence[str],
    words: Sequence[str],
    here: Path,
    wish: Mapping[str, Any],
    bounds: TrialBounds,
    principal: str,
    progress: Callable[[Mapping[str, object]], None],
) -> Trial:
    """Run a trial with everything it reads and starts as ``holder``; keep its record apart, as that
    principal's.

    Raises:
        TrmcloudError: as in ``trial.try_command``. NotSupported: no Python of this machine can be
            started as that user.
    """
    asked = {
        "words": list(words),
        "here": str(here),
        "wish": dict(wish),
        "bounds": [bounds.for_s, bounds.steps, bounds.gigabytes, bounds.online],
        "python_path": list(python_path),
    }
    with _Ground(holder, python_path) as ground:
        ground.run("try", asked, progress, 4 * bounds.for_s + _SLACK_S)
        answer = ground.answer()
        try:
            trial = load(Trial, TRIAL_VERSION, json.dumps(answer["trial"]))
        except (ContractError, ValueError, KeyError, TypeError):
            raise TrmcloudError("the trial's process gave no result that can be read") from None
        keep_trial(home, trial, ground.read(LOG_NAME, _MOST_LOG_BYTES), principal)
        return trial


# -- the working tree ------------------------------------------------------------------------------


def copy_tree(holder: Holder, python_path: Sequence[str], here: Path, root: str, to: Path) -> Path:
    """Copy the files that would be sent from ``here``, read by ``holder``, to the new folder
    ``to``, and return the place of ``here`` in it. ``root``: ``--root``; '' for none.

    Raises:
        DataError, UsageError: there is nothing to send, or too much. NotSupported: see ``try_as``.
    """
    asked = {"here": str(here), "root": root}
    with _Ground(holder, python_path) as ground:
        content = ground.run("tree", asked, lambda _: None, _SLACK_S, binary=True)
        answer = ground.answer()
    folder = str(answer.get("folder", ""))
    if len(content) > _MOST_TREE_BYTES or not _is_plain(folder or "."):
        raise DataError("the working tree cannot be read as its user gives it")
    to.mkdir(mode=0o700, parents=True)
    try:
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            for member in archive:
                if not member.isreg() or not _is_plain(member.name):
                    continue
                data = archive.extractfile(member)
                path = to / member.name
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                path.write_bytes(data.read() if data is not None else b"")
                path.chmod(0o700 if member.mode & 0o100 else 0o600)
    except (tarfile.TarError, OSError, EOFError) as error:
        raise DataError(f"the working tree cannot be read as its user gives it: {error}") from None
    _list_whole(to)
    return to / folder if folder else to


def _is_plain(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return not name.startswith("/") and ".." not in parts and "\0" not in name and len(name) < 1024


def _list_whole(folder: Path) -> None:
    """Have git list every file of the copy, hidden ones too; where there is no git the walk leaves
    those out. Nothing of the holder's own repository is there: its settings would start commands.
    """
    quiet = {"PATH": SYSTEM_PATH, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    for command in (["git", "init", "-q", "--template="], ["git", "add", "-A", "-f"]):
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run(command, cwd=folder, env=quiet, capture_output=True, timeout=_CHECK_S)


# -- a process of the holder's ---------------------------------------------------------------------


class _Ground:
    """A folder of the holder's, below one of the owner's that it may pass but not list, in which a
    process runs as the holder."""

    def __init__(self, holder: Holder, python_path: Sequence[str]) -> None:
        self._holder, self._path = holder, list(python_path)

    def __enter__(self) -> _Ground:
        self._outer = Path(tempfile.mkdtemp(prefix="trmcloud-holder-"))
        self._outer.chmod(0o711)
        self.folder = self._outer / "ground"
        self.folder.mkdir(mode=0o700)
        os.chown(self.folder, self._holder.uid, self._holder.gid)
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._outer, ignore_errors=True)

    def run(
        self,
        what: str,
        asked: Mapping[str, Any],
        progress: Callable[[Mapping[str, object]], None],
        limit_s: float,
        *,
        binary: bool = False,
    ) -> bytes:
        """Start it with ``asked``; tell its lines of JSON to ``progress``, or return its output. It
        is killed after ``limit_s``."""
        python = self._python()
        asked_path = self._outer / ASKED_NAME
        asked_path.write_text(json.dumps(asked))
        asked_path.chmod(0o644)
        with open(self._outer / "errors", "wb") as errors:
            process = self._start([python, "-m", PROCESS, what, str(self._outer)], errors.fileno())
            overdue = threading.Timer(limit_s, process.kill)
            overdue.daemon = True
            overdue.start()
            content = b""
            try:
                assert process.stdout is not None
                with process.stdout as lines:
                    if binary:
                        content = lines.read(_MOST_TREE_BYTES + 1)
                    else:
                        while line := lines.readline(_MOST_LINE_BYTES):
                            with contextlib.suppress(ValueError):
                                progress(json.loads(line))
                process.wait()
            finally:
                overdue.cancel()
                _end(process)
        return content

    def _start(self, words: Sequence[str], errors: int) -> subprocess.Popen[bytes]:
        holder = self._holder
        return subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=self._environment(),
            cwd=self.folder,
            start_new_session=True,
            user=holder.uid,
            group=holder.gid,
            extra_groups=holder.groups,
            umask=0o077,
        )

    def _environment(self) -> dict[str, str]:
        """Nothing of this process's own, which may hold keys."""
        return {
            "PATH": SYSTEM_PATH,
            "HOME": str(self.folder),
            "LANG": "C.UTF-8",
            "PYTHONPATH": os.pathsep.join(self._path),
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def _python(self) -> str:
        """
        Raises:
            NotSupported: there is none that the holder can start with trmcloud on its path.
        """
        why = ""
        for python in dict.fromkeys((sys.executable, shutil.which("python3", path=SYSTEM_PATH))):
            if python is None:
                continue
            try:
                with open(os.devnull, "wb") as nowhere:
                    process = self._start([python, "-c", f"import {PROCESS}"], nowhere.fileno())
                    process.communicate(timeout=_CHECK_S)
                if process.returncode == 0:
                    return python
                why = f"{python} cannot import trmcloud"
            except (OSError, subprocess.SubprocessError) as error:
                why = f"{python}: {getattr(error, 'strerror', None) or error}"
        raise NotSupported(
            f"nothing can be started as {self._holder.name}: {why}",
            next_step="install it where that user can read it, such as /opt",
        )

    def answer(self) -> dict[str, Any]:
        """
        Raises:
            UsageError, DataError, TrmcloudError: what the process ended with.
        """
        try:
            found = json.loads(self.read(ANSWER_NAME, _MOST_ANSWER_BYTES))
            failure = found.get("error")
        except (ValueError, AttributeError):
            errors = (self._outer / "errors").read_text(errors="replace").strip()
            why = one_line(errors[-300:])
            raise TrmcloudError(
                f"the process of {self._holder.name} gave no answer: {why}"
            ) from None
        if failure is None:
            return dict(found)
        kinds = {kind.__name__: kind for kind in (UsageError, DataError)}
        kind = kinds.get(str(failure.get("kind")), TrmcloudError)
        what, step = (one_line(str(failure.get(key, "")))[:500] for key in ("what", "next_step"))
        raise kind(what, next_step=step)

    def read(self, name: str, most: int) -> bytes:
        """Return a file that the holder has written: no link, no device, no one else's; its
        beginning where it is longer; empty where it is none of that."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            with open(os.open(self.folder / name, flags), "rb") as file:
                about = os.fstat(file.fileno())
                plain = stat.S_ISREG(about.st_mode) and about.st_nlink == 1
                if not plain or about.st_uid != self._holder.uid:
                    return b""
                return file.read(most)
        except OSError:
            return b""


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(_END_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
