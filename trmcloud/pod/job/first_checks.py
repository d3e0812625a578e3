"""Checks of a command on its own machine before it starts, and of a crash in its first minutes.

``fails`` ends a run only for what must fail, whatever the rest of the script does: the entry script
is followed from its first line for as long as it is certain what runs. What is not certain is a
warning, or not checked. The command's own interpreter reads the script, by ``script_check``.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path

from trmcloud.core.contract.command import Command
from trmcloud.io.children import ReaderStopped, run_reader
from trmcloud.pod.job import script_check
from trmcloud.pod.job.script_check import SEND, hosts_in, no_module, no_variable, old_driver

FIRST_S = 600.0
"""From its start, the time in which a crash is judged by its last lines."""
_ASK_S = 20.0
_MOST_ANSWER_BYTES = 1 << 20
_HANG_S, _STUCK_S = 60.0, 150.0
"""Without output or work: until it is warned of, and until an import of that kind is ended."""
_BUSY = 1.0
"""Seconds of a processor and MB read and written; a command that did more of it is no hang."""
_LAST = 80
_WIDEST = 500
_PROBE_BYTES = 1 << 16


class FirstChecks:
    """The checks of one attempt of one command. ``command.unchecked`` turns all of them off."""

    def __init__(self, command: Command) -> None:
        self._command = command
        self.warnings: list[str] = []
        self._lost: dict[str, str] = {}
        """By host, the one of these that it cannot be reached."""
        self._lines: deque[str] = deque(maxlen=_LAST)
        self._looked: tuple[float, float] | None = None
        """When the command last printed or worked (epoch seconds), and its work until then."""
        self._hangs = ""
        self._imports: tuple[str, ...] = ()
        """What the entry script imports whatever happens, in its order."""
        self._begun: dict[str, None] = {}
        self.stuck = ""
        """Why it will not get on; empty where that is not certain."""

    def fails(self, words: Sequence[str], folder: str, environment: Mapping[str, str]) -> str:
        """Return why ``words`` must fail in ``folder``, and what to change; empty where that is not
        certain. Takes a fraction of a second, 20 s at most."""
        if self._command.unchecked:
            return ""
        try:
            wrong = self._of_script(words, folder, environment)
            return wrong or self._of_places(folder, environment)
        except (OSError, ValueError):
            return ""  # a check that fails is no reason to end a run

    def saw(self, line: bytes) -> None:
        """Note a line of the command's log."""
        self._lines.append(line[:_WIDEST].decode("utf-8", "replace").rstrip())

    def importing(self, module: str) -> None:
        """Note that a Python process of the command has begun to import a top-level module."""
        self._begun.setdefault(module)

    def notes(
        self, now: float, *, printed: bool, work: float, waits: Callable[[], bool]
    ) -> list[str]:
        """Return the warnings of now, and set ``stuck``.

        Args:
            now: epoch seconds.
            printed: whether the command has shown any sign of life since its start.
            work: the processor time of its processes (s) and what they read and wrote (MB).
            waits: whether one of them has a connection to another machine.
        """
        if not printed and not self._command.unchecked:
            if self._looked is None or abs(work - self._looked[1]) >= _BUSY:
                self._looked, self._hangs = (now, work), ""
            elif now - self._looked[0] >= _STUCK_S and (module := self._unfinished()):
                if not waits():
                    self.stuck = (
                        f"it hangs at the import of '{module}': it has computed, read and printed "
                        f"nothing for {_STUCK_S:.0f} s, and the script's later imports have not "
                        "begun: a lock that an earlier run left is a usual cause"
                    )
            elif now - self._looked[0] >= _HANG_S:
                self._hangs = (
                    "it has printed and computed nothing for 60 s and may hang, at an import or a "
                    "download: trmcloud stop, or --silent 120 to end such a run by itself"
                )
        told = [each for each in self.warnings if each not in self._lost.values()]
        return [*told, self._hangs] if self._hangs and not printed else told

    def _unfinished(self) -> str:
        """The last module whose import has begun, where the entry script has more to import; empty
        otherwise."""
        begun = [name for name in self._imports if name in self._begun]
        return begun[-1] if begun and len(begun) < len(self._imports) else ""

    def crash(self) -> tuple[str, str] | None:
        """Return the outcome and the reason of a crash that another start would only repeat, by the
        last exception in the log; None for any other crash."""
        raised = [match for line in self._lines if (match := _RAISED.match(line))]
        if self._command.unchecked or not raised:
            return None
        last = raised[-1][1]
        text = "\n".join(self._lines)
        if re.search(r"CUDA out of memory|RESOURCE_EXHAUSTED: Out of memory", last):
            total = re.search(r"total capacity of (\d+)", last)
            more = 2 * int(total[1]) if total else 48
            return "out_of_memory", (
                "the GPU's memory was full before the first checkpoint: use a smaller batch, or a "
                f"larger GPU: run any --memory {more}"
            )
        if found := re.search(r"No module named '([\w.]+)'", last):
            return "bad_config", no_module([found[1].partition(".")[0]], self._command.pip)
        if found := re.search(r"driver on your system is too old \(found version (\d+)\)", last):
            return "bad_config", old_driver("the CUDA of its torch", int(found[1]))
        if _OF_ENVIRON.search(text) and (found := re.search(r"KeyError: '(\w+)'$", last)):
            return "bad_config", no_variable(found[1])
        if found := re.search(r"\[Errno 2\] (No such file or directory: '[^/'].*[./].*')", last):
            return "bad_config", f"{found[1]}: {SEND}"
        lost = (told for host, told in self._lost.items() if host in text)
        return next((("bad_config", told) for told in lost), None)

    def _of_script(self, words: Sequence[str], folder: str, environment: Mapping[str, str]) -> str:
        entry = entry_of(words, folder, environment)
        if entry is None:
            return ""
        python, script, variables, is_direct = entry
        hosts = hosts_in([word.rpartition("=")[2] for word in words])
        tree = folder[: len(folder) - len(self._command.folder)]
        question = [script, is_direct, tree, self._command.pip, hosts]
        try:
            ended = run_reader(
                [*python, script_check.__file__],
                most_s=_ASK_S, folder=Path(folder), environment=variables,
                given=json.dumps(question).encode(), most_bytes=_MOST_ANSWER_BYTES,
            )  # fmt: skip
        except ReaderStopped:
            return ""
        wrong = ""
        for line in ended.out.splitlines():
            try:  # a sitecustomize may print anything
                is_certain, text, host = json.loads(line)
            except (ValueError, TypeError):
                continue
            if is_certain is True:
                wrong = wrong or str(text)
            elif is_certain is None:
                self._imports = tuple(str(text).split())
            elif is_certain is False:
                self.warnings.append(str(text))
                self._lost.update({str(host): str(text)} if host else {})
        return wrong

    def _of_places(self, folder: str, environment: Mapping[str, str]) -> str:
        """Whether checkpoints can be written, read back, and kept."""
        home = environment.get("HOME") or os.path.expanduser("~")
        named = self._command.checkpoints
        places = [_place(name, folder, home) for name in named.split(os.pathsep)]
        closed = {place: told for place in places if (told := _why_closed(place))}
        if named and len(closed) == len({*places}):
            told = next(iter(closed.values()))
            return f"--checkpoints {named}: {told}: name a folder that can be written"
        most = self._command.checkpoint_bytes
        able = [place for place in places if place not in closed and os.path.isdir(place)]
        free = max((shutil.disk_usage(place).free for place in able), default=2 * most)
        if free >= 2 * most:
            return ""
        told = (
            f"{free / 1e9:.3g} GB are free, too few for two checkpoints of {most / 1e9:.3g} GB: "
            f"use a larger disk, or --checkpoint-gb {max(1e-3, free / 2.5e9):.2g}"
        )
        if most != type(self._command).checkpoint_bytes:
            return told
        self.warnings.append(told)  # the default size was not chosen for this command
        return ""


def _place(name: str, folder: str, home: str) -> str:
    """The folder on the disk that is nearest above a place, whose name may be a pattern."""
    plain = "/".join(takewhile(lambda part: not set(part) & set("*?["), name.split("/")))
    path = os.path.join(folder, home + plain[1:] if plain.startswith("~") else plain)
    return path if os.path.isdir(path) else os.path.dirname(path)


def _why_closed(folder: str) -> str:
    """Why a file cannot be written into ``folder`` and read back; empty where it can, or where that
    is not known."""
    data = os.urandom(_PROBE_BYTES)
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(data)
            file.seek(0)
            return "" if file.read() == data else "what is written there reads back otherwise"
    except OSError as error:
        known = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSPC)
        return f"{error.strerror}: '{folder}'" if error.errno in known else ""


# -- a crash ---------------------------------------------------------------------------------------

_RAISED = re.compile(
    r"(?:\[rank\d+\]: ?)?((?!torch\.distributed\.elastic|subprocess\.Called)"
    r"[\w.]*(?:Error|Exception)\b.*)"
)
"""The line of an exception, also of one rank. The one of a launcher (torchrun) follows it."""
_OF_ENVIRON = re.compile(r"""(?:os\.py|<frozen os>)", line \d+, in __getitem__(?:\n.*){0,4}\Z""")
"""The last call of a traceback whose key is that of ``os.environ``."""

# -- the entry script and its interpreter --------------------------------------------------------

_PYTHON = re.compile(r"(?:python|pypy)[0-9.]*")
_SETS = re.compile(r"\w+=")
_FLAGS = ("-u", "-O", "-OO", "-B", "-q")
_LAUNCHERS = ("torchrun", "accelerate")
_OTHER_ENTRY = ("-m", "--mod", "--no-p", "--no_p", "--run", "--py")
"""Beginnings of launchers' options by which the first script is not what they run."""


Entry = tuple[list[str], str, Mapping[str, str], bool]
"""The interpreter with its options, the script that it runs, the environment, and whether no
launcher stands before it, which may set variables."""


def entry_of(words: Sequence[str], folder: str, environment: Mapping[str, str]) -> Entry | None:
    """Return what ``words`` start in ``folder``; None where that is not certain."""
    rest, variables = list(words), dict(environment)
    if os.path.basename(rest[0]) == "env":
        sets = list(takewhile(_SETS.match, words[1:]))
        rest = rest[1 + len(sets) :]
        variables.update(word.partition("=")[::2] for word in sets)
    name = os.path.basename(rest[0]) if rest else ""
    word = os.path.join(folder, rest[0]) if "/" in "".join(rest[:1]) else name
    program = shutil.which(word, path=variables.get("PATH")) if word else None
    is_direct = bool(_PYTHON.fullmatch(name))
    python, rest = [program or "", *takewhile(_FLAGS.__contains__, rest[1:])], rest[1:]
    if is_direct:
        rest = rest[len(python) - 1 : len(python)]
    elif name not in _LAUNCHERS or any(word.startswith(_OTHER_ENTRY) for word in rest):
        return None
    elif program:
        with open(program, "rb") as file:
            first = re.match(rb"#!(/\S+/python[0-9.]*)\n", file.readline(_WIDEST))
            python = [first[1].decode() if first else ""]
    script = next((word for word in rest if word.endswith(".py")), "")
    return (python, script, variables, is_direct) if python[0] and script else None
