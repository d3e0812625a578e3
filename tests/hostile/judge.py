"""Judge what a visit did: every program, file, name, address and word that it had no reason for."""

from __future__ import annotations

import itertools
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.hostile.contents import WORDS
from tests.hostile.doors import Code, Visit
from tests.hostile.watch import Changed, Connected, Executed, Observation, Opened, Program
from tests.hostile.world import KEY_FILES, MARK, NETRC_PASSWORD, PATH, PRIVATE, Hosts, World

ALLOWED = (
    "`.venv/bin/trmcloud` and its own processes, `python -m trmcloud.…`, `python -m model.…` and "
    "`python -m torch.…`: the agent and the watchdog of a local run, the process of a trial, a "
    "launcher, the preparation of data and the trainer",
    "`git`, which lists the files of the tree: without a key in its environment",
    "`.venv/bin/uv`, which resolves packages: without a key, but for the password of the user's "
    "own index",
    "`sky`, here a stand-in that reads `.sky.yaml` as the real one does: without a key but that of "
    "the cloud that it rents from, and not in the tree",
    "the Python of the checkout and the one on PATH, which are asked for their version and "
    "packages, by uv too: without a key",
    "`python3 train.py`, the user's own command, and what it starts; only where the door is to run "
    "it: `try`, `launch local`, and the tools of `mcp` that do the same",
    "what installs the packages of `--pip` for a local run, below the process of its job",
)
"""What may be started, and why; ``Judge.allowed`` decides by it."""
MOST_CPU_S = 12.0
"""CPU time of a visit, strace's included; a usual one takes less than two seconds."""
_READ_BY_PRODUCT = frozenset(
    (".netrc", ".aws/credentials", ".runpod/config.toml", ".cache/huggingface/token")
)
"""Of the files with keys, those that trmcloud's own process reads: the index's password, the
bucket's keys, RunPod's key and the model hub's token. None of its children does."""
_SHOWN = re.compile(rb"(?i)[^\s]{0,60}" + MARK.encode() + rb"[^\s]{0,40}")
_MOST_KEPT_BYTES = 4 << 20
_MOST_OF_A_KIND = 6
_QUIET_SOCKETS = ("/var/run/nscd/socket", "/run/nscd/socket")
"""glibc asks the name service's cache there before it reads /etc/passwd itself."""
_DEVICES = ("/dev/null", "/dev/tty", "/dev/ptmx", "/dev/pts", "/dev/shm", "/dev/urandom")


@dataclass(frozen=True)
class Finding:
    """``kind``: executed, ran, opened, connected, printed, environment, wrote, kept, asked, slow,
    crashed."""

    kind: str
    detail: str


@dataclass(frozen=True)
class Places:
    """Folders and files that a visit may write to, and those outside the tree that it may read.

    ``links`` are typed names of the tree that are links: what is below them is not its author's.
    ``synced``: folders that a new one is made in are opened themselves, to sync them.
    """

    written: tuple[str, ...]
    read: tuple[str, ...]
    links: tuple[str, ...]
    synced: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Allowed:
    """A program that a visit may start, and why. ``is_reader``: it must have no key."""

    reason: str
    is_reader: bool = True
    is_job: bool = False
    """It belongs to the user's own command: so does what it starts."""


class Judge:
    """Judges visits of ``code`` in ``world``."""

    def __init__(self, code: Code, world: World, sky: Path) -> None:
        self._code, self._world, self._sky = code, world, str(sky)
        self._git = shutil.which("git", path=PATH) or "/usr/bin/git"
        self._git_core = ("/usr/lib/git-core/", "/usr/libexec/git-core/")
        self._command_pythons = frozenset((world.python, os.path.realpath(world.python)))
        self._pythons = self._command_pythons | code.pythons | {os.path.realpath(code.python)}

    def places(self, visit: Visit) -> Places:
        """Return the places of a visit that is about to begin, by the links that are there now.

        A link in the place of an output leads nowhere it may write. What is typed for --data,
        --recipe or --into is read where it leads, as by any program; what a link *in* it leads to
        is not. Links above the last name of --into are followed, as by any program.
        """
        start = self._world.tree / visit.start
        tops = (start, self._world.tree)
        into = [
            start / f"{value}{suffix}"
            for flag, value in itertools.pairwise(visit.words)
            if flag == "--into"
            for suffix in ("", ".partial")
        ]
        outputs = {os.path.join(os.path.realpath(path.parent), path.name) for path in into} | {
            os.path.join(os.path.realpath((top / name).parent), os.path.basename(name))
            for name in visit.outputs
            for top in tops
        }
        links = {
            os.path.normpath(start / value)
            for flag, value in itertools.pairwise(visit.words)
            if flag in ("--data", "--recipe", "--into") and (start / value).is_symlink()
        }
        followed = {os.path.realpath(link) for link in links}
        world = self._world
        own = (str(world.product_home), str(world.tmp), str(world.home / ".cache"))
        written = (*own, *sorted(outputs))
        synced = frozenset(os.path.realpath(path.parent) for path in into)
        return Places(written, tuple(sorted(outputs | followed)), tuple(sorted(links)), synced)

    def judge(self, visit: Visit, seen: Observation, hosts: Hosts, places: Places) -> list[Finding]:
        found = [*self._executed(visit, seen), *self._opened(visit, seen, places)]
        found += [*self._wrote(seen, places.written), *self._connected(visit, seen, hosts)]
        found += [*self._printed(seen), *self._asked(visit, hosts), *self._kept(visit)]
        if seen.is_over_time:
            found.append(Finding("slow", f"not ended after {seen.wall_s:.0f} s of real time"))
        elif seen.cpu_s > MOST_CPU_S:
            found.append(Finding("slow", f"{seen.cpu_s:.1f} s of CPU time"))
        text = seen.out + seen.err
        if not seen.is_over_time and (b"Traceback (most recent" in text or seen.code < 0):
            last = (seen.err.strip().splitlines() or [b""])[-1].decode("utf-8", "replace")
            found.append(Finding("crashed", f"status {seen.code}: {last[:200]}"))
        top = f"{self._world.folder}/"
        plain = (Finding(each.kind, each.detail.replace(top, "")) for each in found)
        return _first_of_each(dict.fromkeys(plain))

    # -- programs ------------------------------------------------------------------------------

    def allowed(self, visit: Visit, program: Program) -> Allowed | None:
        """Return why a visit may start this program; None where it may not.

        ``ALLOWED`` says which they are, in words.
        """
        path, words = program.path, program.words
        above = program.parent
        if above is not None and any(self._is_job(visit, each) for each in above.ancestors()):
            return Allowed("the user's own command started it", is_job=True)
        if path == self._code.trmcloud or self._is_product(program):
            return Allowed("trmcloud's own process", is_reader=False)
        if self._is_command(visit, program):
            return Allowed("the user's own command", is_job=True)
        if path == self._git or path.startswith(self._git_core):
            return Allowed("git reads the tree")
        if path == self._code.uv:
            return Allowed("uv resolves packages")
        if path == self._sky:
            return Allowed("sky lists offers")
        is_python = path in self._pythons
        if is_python and not self._in_tree(" ".join(words[1:2])):
            return Allowed("a Python is asked for its version, or for packages")
        return None

    def _is_product(self, program: Program) -> bool:
        words = [word for word in program.words[1:] if word != "-P"]
        is_module = (
            words[:1] == ["-m"]
            and words[1:2] != []
            and words[1].startswith(("trmcloud", "model.", "torch."))
        )
        return program.path in self._code.pythons and is_module

    def _is_command(self, visit: Visit, program: Program) -> bool:
        return (
            visit.runs_command
            and tuple(program.words) == WORDS
            and program.path in self._command_pythons
        )

    def _is_job(self, visit: Visit, program: Program) -> bool:
        """Whether it is the user's own command, or the process that installs its packages."""
        installs = visit.installs and program.words[1:3] == ("-m", "trmcloud.pod.job.process")
        return installs or self._is_command(visit, program)

    def _executed(self, visit: Visit, seen: Observation) -> Iterator[Finding]:
        for event in seen.events:
            if not isinstance(event, Executed):
                continue
            program = event.program
            allowed = self.allowed(visit, program)
            if allowed is None:
                if event.worked or self._in_tree(program.path):
                    shown = re.sub(r"\d{5,}", "N", str(program))
                    yield Finding("executed", f"{shown} (in {program.cwd})")
                continue
            if not event.worked:
                continue
            if allowed.is_reader or allowed.is_job:
                held = sorted(
                    name
                    for name, value in program.environment.items()
                    if MARK in value and not self._may_hold(program, name, value)
                )
                if held:
                    yield Finding("environment", f"{_short(program)} has {', '.join(held)}")
            if program.path == self._sky and self._in_tree(program.cwd):
                yield Finding("executed", f"{_short(program)} in the tree")

    def _may_hold(self, program: Program, name: str, value: str) -> bool:
        """Whether it is the program's own key: the password of the user's index for uv, the
        account that SkyPilot rents from for sky."""
        if program.path == self._sky:
            return name.startswith("AWS_")
        rest = value.replace(NETRC_PASSWORD, "")
        of_uv = any(each.path == self._code.uv for each in program.ancestors())  # it asks a Python
        return of_uv and name.startswith("UV_") and MARK not in rest

    # -- files ---------------------------------------------------------------------------------

    def _opened(self, visit: Visit, seen: Observation, places: Places) -> Iterator[Finding]:
        world = self._world
        keys = {os.path.join(world.home, name): name for name in KEY_FILES}
        for event in seen.events:
            if not isinstance(event, Opened):
                continue
            program = event.program
            is_job = any(self._is_job(visit, each) for each in program.ancestors())
            if _below(event.asked, world.traps):
                if not is_job:
                    yield Finding("ran", f"{os.path.basename(event.asked)}: by {_short(program)}")
                continue
            if not event.real or any(_below(event.real, each) for each in places.read):
                continue
            if event.real in places.synced:
                continue
            if _below(event.real, world.outside):
                yield Finding("opened", f"{_below(event.real, world.folder)}: by {_short(program)}")
            elif event.real in keys:
                is_product = program.path == self._code.trmcloud or self._is_product(program)
                may = is_product and keys[event.real] in _READ_BY_PRODUCT
                may |= is_job and visit.installs and keys[event.real] == ".netrc"  # pip's, here
                if not may:
                    yield Finding("opened", f"~/{keys[event.real]}: by {_short(program)}")
            elif (
                self._in_tree(event.asked)
                and not self._in_tree(event.real)
                and not is_job
                and not event.writes
                and not any(_below(event.asked, each) for each in places.links)
            ):
                inside = event.asked.removeprefix(f"{world.tree}/")
                yield Finding(
                    "opened", f"{event.real} through {inside!r:.80}: by {_short(program)}"
                )

    def _wrote(self, seen: Observation, places: Iterable[str]) -> Iterator[Finding]:
        world = self._world
        for event in seen.events:
            if isinstance(event, Opened) and event.writes and event.real:
                path = event.real.removesuffix(" (deleted)")
            elif isinstance(event, Changed):
                path = event.path
            else:
                continue
            if path.startswith(_DEVICES) or path.startswith("/proc/"):
                continue
            if "/__pycache__" in path and not _below(path, world.folder):
                continue  # of its own modules
            if not any(_below(path, place) for place in places):
                shown = _below(path, world.folder) or path
                yield Finding("wrote", f"{shown!r:.160}: by {_short(event.program)}")

    def _kept(self, visit: Visit) -> Iterator[Finding]:
        """Keys and secrets in what a visit leaves behind."""
        places = [self._world.product_home, *(self._world.tree / name for name in visit.outputs)]
        for place in places:
            for path in _files(place):
                try:
                    data = path.read_bytes()[:_MOST_KEPT_BYTES]
                except OSError:
                    continue
                if (shown := _shown(data)) is not None:
                    yield Finding("kept", f"{_below(str(path), self._world.folder)}: {shown}")

    def _in_tree(self, path: str) -> bool:
        return bool(_below(path, self._world.tree))

    # -- addresses and words ---------------------------------------------------------------------

    def _connected(self, visit: Visit, seen: Observation, hosts: Hosts) -> Iterator[Finding]:
        known = {("127.0.0.1", port) for port in (*seen.own_ports, *self.own_ports)}
        known |= {("::1", port) for port in seen.own_ports}
        for host in (hosts.user, hosts.tree):
            address = host.url.removeprefix("http://").rpartition(":")[0]
            known.add((address, host.port))
        world = self._world
        for event in seen.events:
            if not isinstance(event, Connected) or (event.address, event.port) in known:
                continue
            if (
                any(self._is_job(visit, each) for each in event.program.ancestors())
                and visit.installs
            ):
                continue
            if event.port == 0 and (
                event.address in _QUIET_SOCKETS or _below(event.address, world.product_home)
                or _below(event.address, world.tmp)
            ):  # fmt: skip
                continue
            yield Finding(
                "connected", f"{event.address} port {event.port}: by {_short(event.program)}"
            )

    own_ports: frozenset[int] = frozenset()
    """Ports of the stand-in of RunPod."""

    def _printed(self, seen: Observation) -> Iterator[Finding]:
        for name, data in (("stdout", seen.out), ("stderr", seen.err)):
            if (shown := _shown(data)) is not None:
                yield Finding("printed", f"{name}: {shown}")

    def _asked(self, visit: Visit, hosts: Hosts) -> Iterator[Finding]:
        for name, host in (("tree's index", hosts.tree), ("a stranger", hosts.stranger)):
            for text in host.asked:
                if (shown := _shown(text.encode())) is not None:
                    yield Finding("asked", f"{name}: {shown}")
        for text in hosts.user.asked:
            if visit.is_private and PRIVATE in text:
                yield Finding("asked", "the user's index, for a name of the tree's own index")
            if (shown := _shown(text.replace(NETRC_PASSWORD, "").encode())) is not None:
                yield Finding("asked", f"the user's index: {shown}")


def _first_of_each(findings: Iterable[Finding]) -> list[Finding]:
    """A folder that is walked through a link gives thousands; the first few of a kind are kept."""
    counts: dict[str, int] = {}
    kept = []
    for each in findings:
        counts[each.kind] = counts.get(each.kind, 0) + 1
        if counts[each.kind] <= _MOST_OF_A_KIND:
            kept.append(each)
    return kept


def _short(program: Program) -> str:
    """The program's path, and the words that say which part of it runs."""
    words = [word for word in program.words[1:5] if len(word) < 60 and "\n" not in word]
    name = "/".join(Path(program.path).parts[-3:])
    return re.sub(r"\d{5,}", "N", " ".join((name, *words))[:120])


def _shown(data: bytes) -> str | None:
    match = _SHOWN.search(data)
    return match[0].decode("utf-8", "backslashreplace") if match is not None else None


def _below(path: str, folder: Path | str) -> str:
    """``path`` relative to ``folder``, '.' for the folder itself; empty where it is elsewhere."""
    top = str(folder)
    if path == top:
        return "."
    return path.removeprefix(f"{top}/") if path.startswith(f"{top}/") else ""


def _files(place: Path) -> Iterable[Path]:
    if place.is_symlink():
        return
    if place.is_file():
        yield place
    for folder, _, names in os.walk(place):
        for name in names:
            path = Path(folder, name)
            if not path.is_symlink() and path.is_file():
                yield path
