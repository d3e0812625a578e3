"""``try``: run a command here for a minute, free, in a copy of what would be sent, and judge it.

The command runs in a folder of its own below the home, with the environment that a run would give
it; HOME, caches and the trackers' places lead into that folder, hub pushes are off. What it writes
to an absolute path elsewhere is written for real. The result is a record by the hash of the code
and the command, which a later ``run`` of the same command shows.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from trmcloud.core.contract.command import CODE_NAME, Command
from trmcloud.core.contract.records import ContractError, Instant, Sha256, dump, load
from trmcloud.core.errors import TrmcloudError, UsageError
from trmcloud.core.text import one_line
from trmcloud.core.values import Value
from trmcloud.io.files import read_small, write_atomic
from trmcloud.io.hashing import file_sha256
from trmcloud.operations.commands.commands import (
    CommandRequest,
    check_first_word,
    command_of,
    root_of,
)
from trmcloud.operations.commands.trial_checks import (
    MLFLOW_SERVER,
    TRACKERS,
    Check,
    Observed,
    RequestedMachine,
    Result,
    differences,
    failed,
    judge,
    run_line,
)
from trmcloud.operations.commands.trial_facts import (
    HUB_DIR,
    facts_of,
    resume_flag,
    shadow,
    temporary_of,
)
from trmcloud.operations.commands.trial_process import (
    HOME_DIR,
    JOB_NAME,
    LOG_NAME,
    OBSERVED_NAME,
    TrialJob,
)
from trmcloud.operations.home import make_home
from trmcloud.operations.sending.working_tree import look_at, pack
from trmcloud.pod.machine import processes

Progress = Callable[[Mapping[str, object]], None]
"""Gets ``attempt``, ``at_s``, ``step`` and ``told`` of the running command, each second."""

TRIALS_DIR = "trials"
PROCESS = "trmcloud.operations.commands.trial_process"
VERSION = 1
_KEPT = 64
_MOST_LOG_BYTES = 1 << 20
_MOST_S = 3600.0
_MOST_GB = 1000.0
_MOST_LINKS = 20_000
_END_WITHIN_S = 20.0
_LEAST_FREE_BYTES = 1 << 28

OFFLINE: Mapping[str, str] = {
    **dict(said.split("=") for tracker in TRACKERS for said in tracker.offline),
    "DO_NOT_TRACK": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}
"""Trackers, in their own words: each writes to the working folder and sends nothing."""
HUB_OFFLINE: Mapping[str, str] = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
}
"""The model hub: read from its cache on this machine, neither asked nor written to."""


class TrialGround(Value):
    """This machine, as far as a trial needs it.

    ``environment`` holds the variables of this shell that a run's command would have, ``shell`` all
    of them; ``python_path`` is where trmcloud is imported from.
    """

    home: Path
    environment: Mapping[str, str]
    shell: Mapping[str, str]
    python_path: Sequence[str]
    now: Callable[[], float]


class TrialBounds(Value):
    """How long a trial takes and what it may write. ``for_s``: seconds; ``steps``: 0 for no limit;
    ``gigabytes``: of all files; ``online``: downloads are let through."""

    for_s: float = 60.0
    steps: int = 0
    gigabytes: float = 5.0
    online: bool = False


class Trial(Value):
    """The record of a trial: the checks of one command with one state of the code."""

    code_sha256: Sha256
    words: tuple[str, ...]
    at: Instant
    for_s: float
    checks: tuple[Check, ...]
    line: str = ""
    """The ``trmcloud run …`` to type; empty where the command did not start."""
    contained: tuple[str, ...] = ()
    """A sentence for each thing that was not contained."""
    differences: tuple[str, ...] = ()
    """A sentence for each way in which the run of ``line`` differs from the trial."""
    version: int = VERSION

    @property
    def has_failed(self) -> bool:
        return bool(failed(self.checks))

    @property
    def unknown(self) -> tuple[str, ...]:
        return tuple(check.name for check in self.checks if check.result is Result.UNKNOWN)


def try_command(
    ground: TrialGround,
    request: CommandRequest,
    bounds: TrialBounds,
    hired: RequestedMachine,
    here: Path,
    data: str,
    progress: Progress,
) -> Trial:
    """Run the command in a copy of what would be sent, stop it, judge it, and keep the record.

    Args:
        here: the folder that it is typed in.
        data: ``--data``: a folder that is sent apart from the code, read where it is.

    Raises:
        UsageError: an option is out of its limits, or there is no such command.
        DataError: there is nothing to send, or too much. KeyboardInterrupt: all processes of the
            trial have ended then.
    """
    _check(bounds)
    command = command_of(request, data, here)
    data_dir = str(Path(data).expanduser().absolute()) if data else ""
    if data_dir and not Path(data_dir).is_dir():
        raise UsageError(
            "--data takes a folder, which does not exist", where=data_dir, next_step="--data data"
        )
    out = [command.data] if command.data else []
    tree = look_at(root_of(command, here), out, command.folder)
    check_first_word(command.words[0], tree)
    make_home(ground.home)
    code = pack(tree, ground.home)
    code_sha256 = file_sha256(code / CODE_NAME)
    folder, log = _new_folder(ground.home), b""
    try:
        most_bytes = _most_bytes(folder, bounds, tree.size_bytes)
        job = TrialJob(
            command=command,
            code_dir=str(code),
            data_dir=data_dir,
            temporary=str(temporary_of(folder)),
            environment=_environment(ground, command, folder, online=bounds.online),
            for_s=bounds.for_s,
            steps=bounds.steps,
            most_bytes=most_bytes,
            blocks_network=not bounds.online,
            resume_flag=resume_flag(tree, command.words),
        )
        observed = _observe(ground, folder, job, progress)
        facts = facts_of(
            command, observed, tree, folder,
            for_s=bounds.for_s, most_bytes=most_bytes, data=data, online=bounds.online,
            shell=ground.shell,
        )  # fmt: skip
        checks = judge(facts)
        has_run = checks[0].result is not Result.FAILED and not observed.first.code
        line = run_line(facts, hired) if has_run else ""
        made = Trial(
            code_sha256=code_sha256,
            words=command.words,
            at=ground.now(),
            for_s=bounds.for_s,
            checks=checks,
            line=line,
            contained=_not_contained(observed, bounds, data),
            differences=differences(facts) if line else (),
        )
        with contextlib.suppress(OSError), open(folder / LOG_NAME, "rb") as file:
            file.seek(-min(_MOST_LOG_BYTES, file.seek(0, os.SEEK_END)), os.SEEK_END)
            log = file.read()
        keep_trial(ground.home, made, log)
        return made
    finally:
        _remove(folder)


# -- the record ----------------------------------------------------------------------------------


def key_of(code_sha256: str, words: Sequence[str]) -> str:
    """The name of the record of these words with this code: SHA-256 in hex."""
    return hashlib.sha256(json.dumps([code_sha256, *words]).encode()).hexdigest()


def find_trial(home: Path, code: Path, words: Sequence[str], principal: str = "") -> Trial | None:
    """The record of the same code, packed in the folder ``code``, and the same words; None where
    there is none, or it is damaged. ``principal``: whose trial it was; empty: the owner's."""
    key = key_of(file_sha256(code / CODE_NAME), words)
    path = _records(home, principal) / f"{key}.json"
    try:
        text = read_small(path)
        return load(Trial, VERSION, text) if text is not None else None
    except (ContractError, ValueError, OSError):
        return None


def log_path(home: Path, trial: Trial, principal: str = "") -> Path:
    """The file with what the command printed."""
    return _records(home, principal) / f"{key_of(trial.code_sha256, trial.words)}.log"


def keep_trial(home: Path, trial: Trial, log: bytes, principal: str = "") -> None:
    """Keep the record of a trial and its log: apart from the owner's where it was a principal's,
    whose processes may have written it."""
    folder = _records(home, principal)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    name = key_of(trial.code_sha256, trial.words)
    write_atomic(folder / f"{name}.json", dump(trial), mode=0o600)
    with contextlib.suppress(OSError):
        write_atomic(folder / f"{name}.log", log, durable=False, mode=0o600)
    kept = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    for old in kept[_KEPT:]:
        old.unlink(missing_ok=True)
        old.with_suffix(".log").unlink(missing_ok=True)


def _records(home: Path, principal: str) -> Path:
    return home / TRIALS_DIR / f"of-{principal}" if principal else home / TRIALS_DIR


# -- the folder and the environment --------------------------------------------------------------


def _check(bounds: TrialBounds) -> None:
    if not 1 <= bounds.for_s <= _MOST_S:
        raise UsageError(f"--for must be from 1 to {_MOST_S:g} seconds, not {bounds.for_s:g}")
    if bounds.steps < 0:
        raise UsageError(f"--steps must be above zero, not {bounds.steps}")
    if not 0 < bounds.gigabytes <= _MOST_GB:
        raise UsageError(f"--gb must be from 0 to {_MOST_GB:g}, not {bounds.gigabytes:g}")


def _new_folder(home: Path) -> Path:
    """A folder for one trial, and one for its temporary files; those of processes that are gone are
    removed."""
    trials = home / TRIALS_DIR
    trials.mkdir(mode=0o700, exist_ok=True)
    for old in trials.glob(".trial-*"):
        pid = old.name.split("-")[1]
        if pid.isdigit() and processes.started(int(pid)) is None:
            _remove(old)
    folder = Path(tempfile.mkdtemp(prefix=f".trial-{os.getpid()}-", dir=trials.absolute()))
    temporary_of(folder).mkdir(mode=0o700)
    return folder


def _remove(folder: Path) -> None:
    shutil.rmtree(temporary_of(folder), ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)


def _most_bytes(folder: Path, bounds: TrialBounds, size_bytes: int) -> int:
    free = shutil.disk_usage(folder).free - 2 * size_bytes - _LEAST_FREE_BYTES
    if free <= 0:
        raise TrmcloudError(
            "the disk has no room for a trial", where=str(folder), next_step="free some disk space"
        )
    return min(round(bounds.gigabytes * 1e9), free)


def _environment(
    ground: TrialGround, command: Command, folder: Path, *, online: bool
) -> dict[str, str]:
    """The environment of the tried command: what a run would set, less what leads out of the
    trial's folder."""
    travels = {
        name: value
        for name, value in ground.environment.items()
        if not name.startswith("TRMCLOUD_") and name not in ("PYTHONPATH", "PYTHONHOME")
    }
    given = {
        name: ground.shell[name]
        for name in command.env
        if name in ground.shell and name != MLFLOW_SERVER
    }
    return {
        **travels,
        **_tools(ground.shell),
        **given,
        **OFFLINE,
        **({} if online else HUB_OFFLINE),
        **_places(folder),
        **_shadows(ground.shell, folder),
    }


def _places(folder: Path) -> dict[str, str]:
    """HOME and what programs take in its place, all below ``folder``."""
    home = folder / HOME_DIR
    cache = home / ".cache"
    return {
        "HOME": str(home),
        "TMPDIR": str(temporary_of(folder)),
        "XDG_CACHE_HOME": str(cache),
        "XDG_CONFIG_HOME": str(home / ".config"),
        "XDG_DATA_HOME": str(home / ".local" / "share"),
        "XDG_STATE_HOME": str(home / ".local" / "state"),
        "HF_HOME": str(cache / "huggingface"),
        "TORCH_HOME": str(cache / "torch"),
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        "TRITON_CACHE_DIR": str(cache / "triton"),
        "CUDA_CACHE_PATH": str(cache / "cuda"),
        "MPLCONFIGDIR": str(cache / "matplotlib"),
        "KERAS_HOME": str(home / ".keras"),
    }


def _tools(shell: Mapping[str, str]) -> dict[str, str]:
    """Where installed programs are that are found by HOME otherwise."""
    home = Path(shell.get("HOME") or Path.home())
    usual = {
        "PYTHONUSERBASE": home / ".local",
        "PYENV_ROOT": home / ".pyenv",
        "UV_PYTHON_INSTALL_DIR": home / ".local" / "share" / "uv" / "python",
    }
    return {
        name: shell.get(name) or str(path)
        for name, path in usual.items()
        if name in shell or path.is_dir()
    }


def _shadows(shell: Mapping[str, str], folder: Path) -> dict[str, str]:
    """The model hub's caches of this user, to be read through links: by the variables that name
    them to Hugging Face's libraries."""
    user = Path(shell.get("HOME") or Path.home())
    cache = Path(shell.get("XDG_CACHE_HOME") or user / ".cache")
    hub_home = Path(shell.get("HF_HOME") or cache / "huggingface")
    made = {}
    for name, usual in (("HF_HUB_CACHE", "hub"), ("HF_DATASETS_CACHE", "datasets")):
        source = Path(shell.get(name) or hub_home / usual)
        if source.is_dir():
            target = folder / (HUB_DIR if usual == "hub" else f"{HUB_DIR}-{usual}")
            shadow(source, target, _MOST_LINKS)
            made[name] = str(target)
    return made


def _not_contained(observed: Observed, bounds: TrialBounds, data: str) -> tuple[str, ...]:
    told = ["files that it writes to absolute paths outside its folder are really written"]
    if data:
        told.append(f"--data {data} is used in place, not copied")
    if bounds.online:
        told.append("the network is open (--online); trackers are set to offline")
    elif not observed.network_blocked:
        told.append("the network is open: this system allows no network namespace")
    return tuple(told)


# -- the process ---------------------------------------------------------------------------------


def _observe(ground: TrialGround, folder: Path, job: TrialJob, progress: Progress) -> Observed:
    write_atomic(folder / JOB_NAME, dump(job), durable=False, mode=0o600)
    environment = {name: v for name, v in ground.environment.items() if name != "PYTHONPATH"}
    environment["PYTHONPATH"] = os.pathsep.join(ground.python_path)
    with open(folder / "errors", "wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", PROCESS, str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
            cwd=folder,
            start_new_session=True,
        )
    try:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                with contextlib.suppress(ValueError):
                    progress(json.loads(line))
        process.wait()
    finally:
        _end(process)
    try:
        text = read_small(folder / OBSERVED_NAME)
        if text is not None:
            return load(Observed, 1, text)
        why = one_line((folder / "errors").read_text(errors="replace").strip()[-300:])
    except ValueError as error:
        why = str(error)
    raise TrmcloudError(f"the trial's process ended without a result: {why}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Have it end all that it started; it is killed if it does not."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(_END_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
