"""Run a command under strace, and read from its record what was executed, opened and connected to.

The record is complete: every process that the command starts, directly or not, is followed until
it ends. A command that exceeds its time limit is ended with all of them.
"""

from __future__ import annotations

import codecs
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, BinaryIO

TRACED = (
    "execve,execveat,open,openat,openat2,creat,connect,sendto,sendmsg,sendmmsg,bind,getsockname,"
    "rename,renameat,renameat2,link,linkat,symlink,symlinkat,mkdir,mkdirat,mknod,mknodat,unlink,"
    "unlinkat,rmdir,truncate,clone,clone3,fork,vfork"
)
_STRING_BYTES = 1 << 16
_LINE = re.compile(rb"(\d+) +(.*)")
_RESUMED = re.compile(rb"<\.\.\. (\w+) resumed>(.*)", re.DOTALL)
_TOKEN = re.compile(rb'"((?:[^"\\]|\\.)*)"(?:\.\.\.)?|([\[\]{}(),])|([^\[\]{}(),"]+)', re.DOTALL)
_FD_PATH = re.compile(rb"\A[^<]*<(.*)>\Z", re.DOTALL)
_KEEPER = Path(__file__).with_name("keeper.py")
_CHANGES = frozenset(
    ("rename", "renameat", "renameat2", "link", "linkat", "symlink", "symlinkat", "mkdir",
     "mkdirat", "mknod", "mknodat", "unlink", "unlinkat", "rmdir", "truncate")
)  # fmt: skip
_FORKS = frozenset(("clone", "clone3", "fork", "vfork"))
_SENDS = frozenset(("connect", "sendto", "sendmsg", "sendmmsg"))


def find_strace() -> str | None:
    return shutil.which("strace")


@dataclass
class Program:
    """What a process executes: the path and words that it was started with, and its environment.

    ``parent`` is what the process was before, or what its parent is.
    """

    path: str
    words: tuple[str, ...]
    environment: Mapping[str, str]
    parent: Program | None
    cwd: str = ""
    """The folder that it was started in."""
    seen_cwd: bool = False

    def ancestors(self) -> Iterator[Program]:
        """This one, its parent and so on."""
        each: Program | None = self
        while each is not None:
            yield each
            each = each.parent

    def __str__(self) -> str:
        return " ".join((self.path, *self.words[1:]))[:300]


@dataclass(frozen=True)
class Executed:
    program: Program
    worked: bool


@dataclass(frozen=True)
class Opened:
    """``asked`` is the absolute path that was asked for, ``real`` that of what was opened; empty
    where it was not."""

    program: Program
    asked: str
    real: str
    writes: bool


@dataclass(frozen=True)
class Changed:
    """A name that was made, replaced or removed."""

    program: Program
    call: str
    path: str


@dataclass(frozen=True)
class Connected:
    """``address`` is an IP address, or the path of a socket with port 0."""

    program: Program
    address: str
    port: int


Event = Executed | Opened | Changed | Connected


@dataclass
class Observation:
    """What a command did."""

    code: int
    out: bytes
    err: bytes
    wall_s: float
    cpu_s: float
    """Of all its processes, without strace's own."""
    is_over_time: bool
    events: list[Event] = field(default_factory=list)
    own_ports: frozenset[int] = frozenset()
    """Ports that its processes listened on."""


@dataclass(frozen=True)
class Talk:
    """Requests of JSON-RPC for the command's standard input, one after the other.

    A text ``$NAME`` among a request's arguments stands for the field NAME of the latest answer
    that had one. A request whose fields are not known is left out.
    """

    requests: Sequence[Mapping[str, Any]]


def watch(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    cwd: Path,
    log: Path,
    most_s: float,
    talk: Talk | None = None,
) -> Observation:
    """Run ``command``, whose first word is an absolute path.

    Args:
        log: a folder for what it prints, and for strace's record.
        most_s: the time limit, seconds of real time.
    """
    strace = find_strace()
    assert strace is not None, "there is no strace"
    record, report = log / "trace", log / "report.json"
    words = [
        sys.executable, "-IS", str(_KEEPER), str(most_s), str(report), strace, "-f", "-y", "-v",
        "--seccomp-bpf", "-qq", "-s", str(_STRING_BYTES), "-e", f"trace={TRACED}", "-e",
        "signal=none", "-o", str(record), *command,
    ]  # fmt: skip
    with open(log / "stdout", "wb") as out, open(log / "stderr", "wb") as err:
        pipe = subprocess.PIPE
        child = subprocess.Popen(
            words, stdin=subprocess.DEVNULL if talk is None else pipe,
            stdout=out if talk is None else pipe, stderr=err, cwd=cwd, env=dict(environment),
        )  # fmt: skip
        if talk is not None:
            _speak(child, talk, out)
        child.wait()
    about = json.loads(report.read_bytes())
    reader = _Reader(str(cwd))
    reader.read(record.read_bytes())
    return Observation(
        out=(log / "stdout").read_bytes(),
        err=(log / "stderr").read_bytes(),
        events=reader.events,
        own_ports=frozenset(reader.ports),
        **about,
    )


def _speak(child: subprocess.Popen[bytes], talk: Talk, out: BinaryIO) -> None:
    """Ask each request once the one before is answered; all that is answered goes to ``out``."""
    assert child.stdin is not None
    assert child.stdout is not None
    known: dict[str, Any] = {}
    with child.stdin as asks, child.stdout as answers, contextlib.suppress(BrokenPipeError):
        for number, request in enumerate(talk.requests):
            made = _filled(request, known)
            if made is None:
                continue
            is_asked = not str(request["method"]).startswith("notifications/")
            message = {"jsonrpc": "2.0", **made, **({"id": number} if is_asked else {})}
            asks.write(json.dumps(message).encode() + b"\n")
            asks.flush()
            if is_asked and not _answered(answers, out, number, known):
                break
        asks.close()
        out.writelines(answers)


def _answered(answers: IO[bytes], out: BinaryIO, number: int, known: dict[str, Any]) -> bool:
    """Whether the answer came; texts among its fields are ``known`` from then on."""
    for line in answers:
        out.write(line)
        with contextlib.suppress(ValueError):
            answer = json.loads(line)
            if answer.get("id") != number:
                continue
            fields = (answer.get("result") or {}).get("structuredContent") or {}
            known |= {name: value for name, value in fields.items() if isinstance(value, str)}
            return True
    return False


def _filled(value: Any, known: Mapping[str, Any]) -> Any:
    """``value`` with each ``$NAME`` replaced; None where a name is not known."""
    if isinstance(value, str) and value.startswith("$"):
        return known.get(value[1:])
    if isinstance(value, Mapping):
        made = {key: _filled(each, known) for key, each in value.items()}
        return None if None in made.values() else made
    return value


class _Reader:
    """Events of a record of strace; ``cwd`` is where its command was started."""

    def __init__(self, cwd: str) -> None:
        self.events: list[Event] = []
        self.ports: set[int] = set()
        self._first = cwd
        self._parents: dict[int, int] = {}
        self._programs: dict[int, Program] = {}
        self._cwds: dict[int, str] = {}

    def read(self, record: bytes) -> None:
        calls = list(self._calls(record))
        for pid, name, _, result in calls:
            if name in _FORKS and result.isdigit():
                self._parents.setdefault(int(result), pid)
        for pid, name, arguments, result in calls:
            self._read_call(pid, name, arguments, result)

    def _calls(self, record: bytes) -> Iterator[tuple[int, str, bytes, bytes]]:
        """(process, name, arguments, result) of each call, in the order in which they ended."""
        begun: dict[int, bytes] = {}
        for row in record.splitlines():
            match = _LINE.fullmatch(row)
            if match is None:
                continue
            pid, text = int(match[1]), match[2]
            if text.endswith(b"<unfinished ...>"):
                begun[pid] = text[: -len(b"<unfinished ...>")].rstrip()
                continue
            if (resumed := _RESUMED.fullmatch(text)) is not None:
                text = begun.pop(pid, b"") + resumed[2]
            call, equals, result = text.rpartition(b" = ")
            name, bracket, arguments = call.partition(b"(")
            if equals and bracket:
                yield pid, name.decode(), arguments.rstrip().removesuffix(b")"), result.strip()
        for pid, text in begun.items():  # it never ended: what was asked for counts
            name, bracket, arguments = text.partition(b"(")
            if bracket:
                yield pid, name.decode(), arguments, b"?"

    def _program(self, pid: int) -> Program:
        """What the process executes; until it executes something of its own, what its parent
        does."""
        if pid not in self._programs:
            parent = self._parents.get(pid)
            if parent is None:
                self._programs[pid] = Program("", ("",), {}, None)
            else:
                self._programs[pid] = self._program(parent)
                self._cwds.setdefault(pid, self._cwds.get(parent, self._first))
        return self._programs[pid]

    def _read_call(self, pid: int, name: str, arguments: bytes, result: bytes) -> None:
        program = self._program(pid)
        worked = not result.startswith((b"-1", b"?"))
        if name in ("execve", "execveat"):
            self._executed(pid, program, _parsed(arguments), worked)
        elif name in ("open", "openat", "openat2", "creat"):
            self._opened(pid, program, name, arguments, result if worked else b"")
        elif name in _CHANGES and worked:
            for path in self._paths(pid, arguments)[-2 if name.startswith("rename") else -1 :]:
                self.events.append(Changed(program, name, path))
        elif name in _SENDS:
            if (met := _address(arguments)) is not None:
                self.events.append(Connected(program, *met))
        elif name in ("bind", "getsockname") and worked and (met := _address(arguments)):
            self.ports.update({met[1]} - {0})

    def _executed(self, pid: int, before: Program, given: list[Any], worked: bool) -> None:
        path = next(each for each in given if isinstance(each, bytes))
        words, variables = (each for each in given if isinstance(each, list))
        pairs = (os.fsdecode(each).partition("=") for each in variables)
        environment = {name: value for name, _, value in pairs}
        full = os.path.normpath(os.path.join(self._cwd(pid), os.fsdecode(path)))
        typed = tuple(os.fsdecode(each) for each in words) or ("",)
        made = Program(full, typed, environment, before, self._cwd(pid))
        if worked:
            self._programs[pid] = made
        self.events.append(Executed(made, worked))

    def _opened(
        self, pid: int, program: Program, name: str, arguments: bytes, result: bytes
    ) -> None:
        paths = self._paths(pid, arguments)
        match = _FD_PATH.match(result)
        real = os.fsdecode(_unescaped(match[1])) if match is not None else ""
        _, _, flags = arguments.rpartition(b'"')
        writes = name == "creat" or bool(re.search(rb"O_(WRONLY|RDWR|CREAT|TRUNC|APPEND)", flags))
        self.events.append(Opened(program, paths[-1], real, writes))

    def _cwd(self, pid: int) -> str:
        return self._cwds.get(pid, self._first)

    def _paths(self, pid: int, arguments: bytes) -> list[str]:
        """Return the absolute paths among the arguments, each joined to its folder."""
        made, folder = [], self._cwd(pid)
        for each in _parsed(arguments):
            if isinstance(each, bytes):
                made.append(os.path.normpath(os.path.join(folder, os.fsdecode(each))))
                folder = self._cwd(pid)
            elif isinstance(each, str) and (match := _FD_PATH.match(each.encode("latin-1"))):
                folder = os.fsdecode(_unescaped(match[1]))
                if each.startswith("AT_FDCWD"):
                    self._cwds[pid] = folder
                    program = self._programs.get(pid)
                    if program is not None and not program.seen_cwd:
                        program.cwd, program.seen_cwd = folder, True
        return made


def _parsed(arguments: bytes) -> list[Any]:
    """Arguments as strace writes them: strings as bytes, lists as lists, all else as text."""
    stack: list[list[Any]] = [[]]
    for string, bracket, other in _TOKEN.findall(arguments):
        if bracket in (b"[", b"{", b"("):
            stack.append([])
        elif bracket in (b"]", b"}", b")"):
            if len(stack) > 1:
                made = stack.pop()
                stack[-1].append(made)
        elif bracket:
            continue
        elif other:
            if text := other.decode("latin-1").strip():
                stack[-1].append(text)
        else:
            stack[-1].append(_unescaped(string))
    return stack[0]


def _unescaped(text: bytes) -> bytes:
    return bytes(codecs.escape_decode(text)[0]) if b"\\" in text else text


def _address(arguments: bytes) -> tuple[str, int] | None:
    """The address and port of a socket's address; None where there is none, or a kernel's."""
    family = re.search(rb"sa_family=(AF_\w+)", arguments)
    if family is None or family[1] == b"AF_NETLINK":
        return None
    if family[1] == b"AF_UNIX":
        path = re.search(rb'sun_path=@?"((?:[^"\\]|\\.)*)"', arguments)
        return (os.fsdecode(_unescaped(path[1])) if path is not None else "?", 0)
    address = re.search(rb'(?:inet_addr\("|inet_pton\(AF_INET6, ")([^"]+)"', arguments)
    port = re.search(rb"port=htons\((\d+)\)", arguments)
    if address is None or port is None:
        return (family[1].decode(), 0)
    return address[1].decode(), int(port[1])
