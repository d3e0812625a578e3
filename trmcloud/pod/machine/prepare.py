"""From a bare machine to one that can train: checked, installed, and given its files.

The agent asks at each tick and is never made to wait. What was found out is kept in
``prepared.json``: an agent that is started again must not take its own trainer for a stranger who
uses the GPUs. A machine without ``check.json`` is the user's own and is ready as it is.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from trmcloud.core.catalog.torch_builds import build_of, fitting_torch, read_version
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.boards import BOARD_NOTE, BoardSeen, active_links, board_from
from trmcloud.core.values import Value, replace
from trmcloud.io.files import read_small, write_atomic
from trmcloud.pod.machine import packages, processes
from trmcloud.pod.machine.environment import has_nvlink, nccl_environment
from trmcloud.pod.machine.hardware import (
    BOARD_QUERY,
    GPU_QUERY,
    LINKS_QUERY,
    Check,
    FoundHardware,
    load_check,
    parse_board,
    parse_gpus,
    refusals,
    wrong_image,
)
from trmcloud.pod.machine.processes import Command

PREPARED_NAME = "prepared.json"
INSTALL_LOG_NAME = "install.log"

_QUERY_S = 60.0
_LOOKS = 3
_LOOK_AGAIN_S = 3.0
_INSTALL_TRIES = 3
_INSTALL_S = 600.0
_MAX_TEXT = 400
_PIP_CAUSE = re.compile(r"[:\]'] ?'?([^:\]'\"]+ [^:\]'\"]+)'\)")


class PreparingProgress(Value):
    """``state`` is checking, installing, waiting, refused or ready. ``message`` says why it is
    refused, or what is being waited for; ``seconds`` is how long each state took so far."""

    state: str
    message: str = ""
    seconds: Mapping[str, float] = field(default_factory=dict)


class TrainerSetup(Value):
    """The interpreter and settings of the trainer. ``python_path`` comes before whatever is there;
    where both it and ``environment`` are empty, the agent's own will do."""

    python: str
    python_path: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    def over(self, environment: Mapping[str, str]) -> dict[str, str]:
        """``environment`` as the trainer needs it; what the user set of NCCL's stays."""
        before = environment.get("PYTHONPATH", "")
        paths = [*self.python_path, *filter(None, before.split(os.pathsep))]
        made = {**self.environment, **environment}
        if paths:
            made["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
        return made


class Preparation:
    """One pod's way to being ready. ``give_up_at`` is on the clock of ``poll``'s ``now``."""

    def __init__(
        self,
        root: Path,
        pod_name: str,
        *,
        give_up_at: float = math.inf,
        wanted: Path = packages.LIST,
        mounts: Path = Path("/proc/mounts"),
    ) -> None:
        self._root = root
        self._pod_dir = root / contract.PODS_DIR / pod_name
        self._give_up_at = give_up_at
        self._wanted, self._mounts = wanted, mounts
        self._state = "checking"
        self._message = ""
        self._since: float | None = None
        self._command: Command | None = None
        self._looks = self._tries = 0
        self._look_at = -math.inf
        self._seen = FoundHardware()
        self._checked = False
        self._asked: set[tuple[str, ...]] = set()
        self._gpus: tuple[str, ...] = ()
        self._board: BoardSeen | None = None
        self._torch = ""
        """The torch that takes the place of the planned one, with its build; '': none has to."""
        self._packages = self._python = ""
        self._seconds: dict[str, float] = {}
        self._recall()

    # -- what the agent asks --------------------------------------------------------------------

    def poll(self, now: float) -> PreparingProgress:
        """Go on as far as is possible without waiting. ``now``: seconds on a steady clock."""
        if self._since is None:
            self._since = now
        steps = {
            "checking": self._check,
            "installing": self._install,
            "waiting": self._wait_for_files,
        }
        while self._state in steps:
            before = self._state
            if now >= self._give_up_at:
                self._refuse(f"it was not ready in time: {self._message or before}", now)
                break
            steps[before](now)
            if self._state == before:
                break
        return PreparingProgress(self._state, self._message, self._spent(now))

    def trainer(self) -> TrainerSetup:
        """Return the trainer's setup, once ready; an agent that was restarted need not poll
        first."""
        staged = self._staged()
        python = self._python or sys.executable
        if staged is None:
            return TrainerSetup(python)
        paths = (staged.code, self._packages) if self._packages else (staged.code,)
        name = self._gpus[0] if self._gpus else ""
        nccl = nccl_environment(name, len(self._gpus), has_nvlink(name))
        return TrainerSetup(python, paths, nccl)

    def notes(self) -> Mapping[str, str]:
        """For the report: what the machine said of its board."""
        return {BOARD_NOTE: self._board.to_text()} if self._board is not None else {}

    def stop(self) -> None:
        """End what runs beside."""
        if self._command is not None:
            self._command.kill()

    # -- checking -------------------------------------------------------------------------------

    def _check(self, now: float) -> None:
        try:
            text = read_small(self._pod_dir / contract.CHECK_NAME)
            check = load_check(text) if text is not None else None
        except ValueError as error:
            self._refuse(f"what was rented cannot be read: {error}", now)
            return
        if check is None:
            self._enter("ready", now)
        elif why := wrong_image(check.torch, packages.installed("torch")):
            self._refuse(why, now)
        elif self._checked:
            self._enter("installing", now)
        elif now >= self._look_at:
            self._look(check, now)

    def _look(self, check: Check, now: float) -> None:
        """One command after another; then judge what they said."""
        if check.asks_for_gpus and not self._seen.gpus and not self._seen.complaints:
            answer = self._answer(GPU_QUERY, now)
            if answer is None:
                return
            gpus, complaints = parse_gpus(answer)
            self._seen = FoundHardware(gpus, complaints or (() if gpus else ("nothing at all",)))
        for query in (BOARD_QUERY, LINKS_QUERY) if self._seen.gpus else ():
            if query in self._asked:
                continue
            answer = self._answer(query, now)
            if answer is None:
                return
            self._asked.add(query)
            self._note_board(query, answer)
        self._judge(check, self._seen, now)

    def _note_board(self, query: tuple[str, ...], answer: str) -> None:
        if query == LINKS_QUERY:
            self._seen = replace(self._seen, links=active_links(answer))
            return
        watts, architecture = parse_board(answer)
        self._seen = replace(self._seen, watts=watts, architecture=architecture)

    def _judge(self, check: Check, seen: FoundHardware, now: float) -> None:
        mounts = ""
        with contextlib.suppress(OSError):
            mounts = self._mounts.read_text(encoding="utf-8", errors="replace")
        found = refusals(check, replace(seen, mounts=mounts))
        self._looks += 1
        self._seen = FoundHardware()
        self._asked.clear()
        if found and self._looks < _LOOKS and all(refusal.may_pass for refusal in found):
            # nvidia-smi itself can wake a GPU, and a last tenant takes a moment to leave.
            self._message = found[0].text
            self._look_at = now + _LOOK_AGAIN_S
            return
        self._board = seen.board_seen()
        if found:
            self._refuse("; ".join(refusal.text for refusal in found), now)
            return
        if seen.gpus and (why := self._choose_torch(check, seen)):
            self._refuse(why, now)
            return
        self._checked = True
        self._gpus = tuple(gpu.name for gpu in seen.gpus)
        self._enter("installing", now)

    def _choose_torch(self, check: Check, seen: FoundHardware) -> str:
        """Choose the torch that the driver and the GPU run; why there is none, else ''."""
        there = packages.installed("torch")
        pin = packages.pinned_torch(self._wanted, os.environ)
        if there is None and packages.names_index(os.environ):
            return ""  # the user's own index says which build it serves
        if not (there or pin):
            return ""
        torch, why = fitting_torch(there or pin, seen.driver, seen.architecture)
        if not why:
            return ""
        if there and pin and not check.keeps_torch:
            torch, _ = fitting_torch(pin, seen.driver, seen.architecture)
        build = build_of(torch)
        if build is None or (there and check.keeps_torch):
            return f"torch {there or pin} does not run on this machine: {why}"
        self._torch = f"{torch.partition('+')[0]}+{build.name}"
        self._board = seen.board_seen(self._torch)
        return ""

    def _answer(self, words: tuple[str, ...], now: float) -> str | None:
        """Return a query's output; None while it runs."""
        if self._command is None:
            self._command = Command(words, now + _QUERY_S)
        if self._command.poll(now) is None:
            return None
        command, self._command = self._command, None
        if command.timed_out:
            return f"{words[0]} gave no answer within {_QUERY_S:.0f} s"
        return command.output()

    # -- installing -----------------------------------------------------------------------------

    def _install(self, now: float) -> None:
        torch, _, build = self._torch.partition("+")
        torch = torch or os.environ.get(contract.ENV_INSTALL_PREFIX + "TORCH", "")
        try:
            wanted = packages.read_list(self._wanted.read_text(encoding="utf-8"), torch)
        except (OSError, ValueError) as error:
            self._refuse(f"its list of packages cannot be read: {error}", now)
            return
        lacking = packages.missing(wanted)
        # The image's own torch does not run here where another was chosen.
        is_whole = bool(build) or packages.needs_python(lacking)
        if is_whole:
            lacking = wanted
        if not lacking:
            self._found("", is_whole, now)
            return
        python = packages.PYTHON if is_whole else ""
        target = packages.folder_for(self._root, lacking, python, build)
        if target.is_dir():
            self._found(str(target), is_whole, now)
            return
        try:
            self._install_into(target, lacking, is_whole, now)
        except OSError as error:
            self._refuse(f"packages cannot be installed: {error}", now)

    def _install_into(
        self, target: Path, lacking: tuple[packages.Package, ...], is_whole: bool, now: float
    ) -> None:
        building = target.with_name(f".{target.name}.{self._pod_dir.name}.part")
        if self._command is None:
            shutil.rmtree(building, ignore_errors=True)
            building.mkdir(parents=True)
            words = packages.install_command(lacking, building, os.environ)
            names = ", ".join(package.name for package in lacking)
            if is_whole:
                words = packages.whole_command(lacking, building, os.environ)
                names = f"Python {packages.PYTHON}, {names}"
            self._message = f"installing {names}"[:_MAX_TEXT]
            self._tries += 1
            log = self._pod_dir / INSTALL_LOG_NAME
            build = self._torch.partition("+")[2]
            environment = packages.install_environment(os.environ, building, build)
            self._command = Command(words, now + _INSTALL_S, log, environment)
        code = self._command.poll(now)
        if code is None:
            return
        command, self._command = self._command, None
        site = packages.site_of(building) if is_whole else str(building)
        if code == 0 and not packages.missing(lacking, [site]):
            with contextlib.suppress(OSError):  # another pod on this volume was quicker
                os.rename(building, target)
            shutil.rmtree(building, ignore_errors=True)
            self._found(str(target), is_whole, now)
        elif command.timed_out or self._tries >= _INSTALL_TRIES:
            why = "it took too long" if command.timed_out else self._last_words() or f"code {code}"
            what = f"Python {packages.PYTHON} and torch" if is_whole else "packages"
            self._refuse(f"{what} could not be installed: {why}", now)

    def _found(self, folder: str, is_whole: bool, now: float) -> None:
        # The user's own index may serve another build than was asked for.
        torch = packages.installed("torch", [packages.site_of(Path(folder))]) if is_whole else ""
        if torch and "+" in torch and self._board is not None:
            _, why = fitting_torch(torch, read_version(self._board.driver), None)
            if why:
                self._refuse(f"torch {torch} does not run on this machine: {why}", now)
                return
        self._packages = "" if is_whole else folder
        self._python = f"{folder}/bin/python" if is_whole else ""
        self._enter("waiting", now)

    def _last_words(self) -> str:
        """The last error that was written down and what caused it, or the last line."""
        lines: list[str] = []
        with contextlib.suppress(OSError):
            text = (self._pod_dir / INSTALL_LOG_NAME).read_text(encoding="utf-8", errors="replace")
            lines = [line.strip() for line in text[-65_536:].splitlines() if line.strip()]
        found = [n for n, line in enumerate(lines) if line.lower().startswith("error")]
        broken = [line for line in lines if "connection broken by" in line]
        if found and broken:
            # pip tells of it in passing, and at last only that nothing was found.
            why = _PIP_CAUSE.search(broken[-1])
            return f"the package index is out of reach: {why[1] if why else broken[-1][-120:]}"
        if not found:
            return lines[-1] if lines else ""
        # uv tells what it was about first, and the innermost cause last.
        because = [line for line in lines[found[-1] + 1 :] if line.lower().startswith("cause")]
        said = lines[found[-1]].removeprefix("error: ")
        return f"{said}: {because[-1].partition(': ')[2]}" if because else said

    # -- waiting --------------------------------------------------------------------------------

    def _wait_for_files(self, now: float) -> None:
        self._message = "code and data to be sent"
        staged = self._staged()
        if staged is None:
            return
        for path in (staged.code, *staged.data):
            if not os.path.isdir(path):
                self._message = f"{path} was named as sent and is not there"
                return
        self._enter("ready", now)

    def _staged(self) -> contract.StagedFiles | None:
        """Return the last staging note; one that names anything outside the pod's own folder is
        rejected."""
        try:
            text = read_small(self._pod_dir / contract.STAGED_NAME)
            staged = contract.load_staged(text) if text is not None else None
        except ValueError as error:
            self._message = str(error)
            return None
        if staged is None:
            return None
        root = os.path.realpath(self._root)
        for path in (staged.code, *staged.data):
            if not os.path.realpath(path).startswith(root + os.sep):
                self._message = f"{path} is not below {self._root}"
                return None
        return staged

    # -- states ---------------------------------------------------------------------------------

    def _enter(self, state: str, now: float) -> None:
        self._seconds = dict(self._spent(now))
        self._state, self._since, self._message = state, now, ""
        self._remember()

    def _refuse(self, why: str, now: float) -> None:
        self.stop()
        self._enter("refused", now)
        self._message = contract.strip_control(why)[:_MAX_TEXT]
        self._remember()

    def _spent(self, now: float) -> Mapping[str, float]:
        seconds = dict(self._seconds)
        if self._since is not None and self._state not in ("ready", "refused"):
            seconds[self._state] = seconds.get(self._state, 0.0) + max(0.0, now - self._since)
        return seconds

    def _remember(self) -> None:
        record = {
            "version": 1,
            "container": _container(),
            "checked": self._checked,
            "refused": self._message if self._state == "refused" else "",
            "gpus": list(self._gpus),
            "board": self._board.to_text() if self._board is not None else "",
            "torch": self._torch,
            "packages": self._packages,
            "python": self._python,
            "seconds": self._seconds,
        }
        with contextlib.suppress(OSError):
            write_atomic(self._pod_dir / PREPARED_NAME, json.dumps(record))

    def _recall(self) -> None:
        """Take over what an agent before this one found out, in this very container."""
        with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
            data: dict[str, Any] = json.loads(read_small(self._pod_dir / PREPARED_NAME) or "null")
            if data["version"] != 1:
                return
            gpus = tuple(str(name) for name in data["gpus"])
            seconds = {str(key): float(value) for key, value in data["seconds"].items()}
            self._gpus, self._seconds = gpus, seconds
            self._board, self._torch = (
                board_from(str(data.get("board", ""))),
                str(data.get("torch", "")),
            )
            self._packages, self._python = str(data["packages"]), str(data.get("python", ""))
            if data["container"] == _container():
                self._checked = data["checked"] is True
                if data["refused"]:
                    self._state, self._message = "refused", str(data["refused"])


def _container() -> str:
    """Return an id of this container's life, which differs from other lives of the same pod."""
    return f"{processes.boot_id()}/{processes.started(1)}"
