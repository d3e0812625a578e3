"""Checks of the machine against what was rented, and samples of its GPUs' counters."""

from __future__ import annotations

import fnmatch
import re
import shutil
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, fields
from typing import Annotated, NamedTuple

from trmcloud.core.catalog.torch_builds import read_version
from trmcloud.core.contract import records
from trmcloud.core.contract.boards import BoardSeen, is_worse
from trmcloud.core.contract.pod_contract import (
    GPU_NOTE,
    MOST_GPUS,
    GpuCounters,
    GpuWindow,
    summed_up,
)
from trmcloud.core.text import strip_control
from trmcloud.core.values import Value
from trmcloud.pod.machine.processes import Command

# The GPUs' counters, looked at now and then while the trainer trains.

QUERY = (
    "nvidia-smi",
    "--query-gpu=utilization.gpu,memory.used,memory.total,clocks.sm",
    "--format=csv,noheader,nounits",
)
SAMPLE_EVERY_S = 15.0
WINDOW_S = 600.0
_BUSY_PERCENT = 1.0
"""A GPU that computes less is idle: a driver's own work is below it."""
_ANSWER_WITHIN_S = 10.0
_FIELDS = 4


class GpuSampler:
    """Asks nvidia-smi and never waits for it; without one there is nothing to tell.

    Args:
        ask: starts a command that is given up at an instant of the same clock as ``tend``'s.
    """

    def __init__(
        self,
        has_gpus: bool | None = None,
        ask: Callable[[Sequence[str], float], Command] = Command,
        every_s: float = SAMPLE_EVERY_S,
    ) -> None:
        self._has = shutil.which(QUERY[0]) is not None if has_gpus is None else has_gpus
        self._ask, self._every_s = ask, every_s
        self._asked: Command | None = None
        self._asked_at = -every_s
        self._samples: deque[tuple[float, tuple[GpuCounters, ...]]] = deque()
        self._busy_at: float | None = None
        """When a GPU was seen to compute last, or was looked at first."""

    def tend(self, now: float, *, trains: bool) -> None:
        """Go on as far as is possible without waiting. ``now``: seconds on a steady clock; what is
        seen while it does not train (it compiles, evaluates, saves) counts for nothing."""
        if not self._has:
            return
        if self._asked is not None:
            code = self._asked.poll(now)
            if code is None:
                return
            asked, self._asked = self._asked, None
            if code == 0 and trains:
                self._take(parse(asked.output()), now)
        if trains and now - self._asked_at >= self._every_s:
            self._asked, self._asked_at = self._ask(QUERY, now + _ANSWER_WITHIN_S), now

    def forget(self) -> None:
        """Another attempt begins: what the one before did says nothing of it."""
        self._samples.clear()
        self._busy_at = None

    def window(self) -> GpuWindow | None:
        """None before the first sample."""
        if not self._samples:
            return None
        last_at = self._samples[-1][0]
        idle_s = last_at - self._busy_at if self._busy_at is not None else None
        over_s = last_at - self._samples[0][0]
        return summed_up([gpus for _, gpus in self._samples], over_s, idle_s)

    def notes(self) -> Mapping[str, str]:
        """For the report."""
        window = self.window()
        return {GPU_NOTE: window.to_text()} if window is not None else {}

    def _take(self, gpus: tuple[GpuCounters, ...], now: float) -> None:
        if not gpus:
            return
        if self._samples and len(self._samples[-1][1]) != len(gpus):
            self._samples.clear()  # one has fallen off its bus, or is back
        known = [gpu.busy_percent for gpu in gpus if gpu.busy_percent is not None]
        if known and (self._busy_at is None or max(known) >= _BUSY_PERCENT):
            self._busy_at = now
        elif not known:
            self._busy_at = None
        self._samples.append((now, gpus))
        while now - self._samples[0][0] > WINDOW_S:
            self._samples.popleft()


def parse(text: str) -> tuple[GpuCounters, ...]:
    """Rows of ``QUERY``; a line that is none (a GPU that fell off its bus is a sentence) is passed
    over, and so is a field that is no number."""
    rows = [[part.strip() for part in line.split(",")] for line in text.splitlines()]
    read = [GpuCounters(*map(_figure, row)) for row in rows if len(row) == _FIELDS]
    return tuple(read[:MOST_GPUS])


# Whether the machine is what was rented: GPUs, driver, idleness, and the volume.
#
# ``check.json`` says what must be found; a machine without one (the user's own) is taken as it
# is. What nvidia-smi prints is read with suspicion: fields may be ``[N/A]`` or ``ERR!``, a GPU
# that fell off its bus is a sentence instead of a row, and a slice of a GPU bears the whole one's
# name.

GPU_QUERY = (
    "nvidia-smi",
    "--query-gpu=name,memory.total,memory.used,driver_version,utilization.gpu",
    "--format=csv,noheader,nounits",
)
#: Apart, since a driver that does not know one of the fields answers none of them.
BOARD_QUERY = (
    "nvidia-smi",
    "--query-gpu=power.max_limit,compute_cap",
    "--format=csv,noheader,nounits",
)
LINKS_QUERY = ("nvidia-smi", "nvlink", "--status")

_MIB = 1_048_576
_BUSY_SHARE = 0.05
_MEMORY_SLACK = 0.95
"""A GPU's own ECC and reserve take up to this much off the memory it is sold with."""
_MAX_TOLD = 4


class Check(Value):
    """``check.json``. Empty fields ask for nothing.

    ``gpu`` are glob patterns of the name nvidia-smi gives (any of them; without ``*`` or ``?`` a
    part of the name, case aside); ``memory_gb`` is per GPU; ``volume`` asks that ``mount`` is a
    mount of its own, writable; ``idle`` that no other process computes there; ``torch`` is the
    version that the image was chosen for. ``board`` is the form factor that was planned with, and
    ``slower_boards`` are slower ones on which the work is done within the money all the same.
    ``keeps_torch``: a torch that is there is the user's, and no other takes its place.
    """

    gpu: tuple[str, ...] = ()
    count: Annotated[int, records.within(0, 1e6)] = 0
    memory_gb: Annotated[float, records.within(0, 1e6)] = 0.0
    board: str = ""
    slower_boards: tuple[str, ...] = ()
    volume: bool = False
    mount: str = "/workspace"
    idle: bool = False
    torch: str = ""
    keeps_torch: bool = False

    @property
    def asks_for_gpus(self) -> bool:
        return bool(self.gpu or self.count or self.memory_gb or self.idle or self.board)


class GpuSeen(NamedTuple):
    """One row of nvidia-smi. MiB and percent; None where the field is no number."""

    name: str
    total_mib: float | None
    used_mib: float | None
    driver: str
    busy_percent: float | None
    raw: str


class Refusal(NamedTuple):
    """Why this is not what was rented. ``may_pass``: look again, it may be over soon."""

    text: str
    may_pass: bool = False


class FoundHardware(Value):
    """The hardware that was found. ``complaints`` are nvidia-smi's sentences; ``mounts`` is
    /proc/mounts. Of the first GPU: ``watts`` is the highest power limit that can be set,
    ``architecture`` its compute capability without the point, ``links`` the number of its active
    NVLink links; None where the machine did not say."""

    gpus: tuple[GpuSeen, ...] = ()
    complaints: tuple[str, ...] = ()
    mounts: str = field(default="", repr=False)
    watts: float | None = None
    architecture: int | None = None
    links: int | None = None

    @property
    def driver(self) -> tuple[int, ...] | None:
        return read_version(self.gpus[0].driver) if self.gpus else None

    def board_seen(self, torch: str = "") -> BoardSeen | None:
        """Return what the first GPU said of its board; None where there is no GPU."""
        if not self.gpus:
            return None
        first = self.gpus[0]
        return BoardSeen(first.name, self.watts, self.links, first.driver, torch)


def load_check(text: str) -> Check:
    """
    Raises:
        ValueError: not an object, an unknown key, or a value of another type.
    """
    data = records.parse(text)
    if isinstance(data, dict):
        if unknown := sorted(set(data) - {each.name for each in fields(Check)}):
            raise ValueError(f"check: unknown key {unknown[0]!r}")
        if isinstance(data.get("gpu"), str):
            data["gpu"] = [data["gpu"]] if data["gpu"] else []
    return records.record_of(Check, data)


def parse_gpus(text: str) -> tuple[tuple[GpuSeen, ...], tuple[str, ...]]:
    """Rows of ``GPU_QUERY`` and whatever else it printed."""
    gpus, complaints = [], []
    for line in strip_control(text).splitlines():
        fields = [part.strip() for part in line.split(",")]
        if len(fields) == 5 and fields[0]:
            name, total, used, driver, busy = fields
            gpus.append(
                GpuSeen(name, _figure(total), _figure(used), driver, _figure(busy), line.strip())
            )
        elif line.strip():
            complaints.append(line.strip()[:200])
    return tuple(gpus), tuple(complaints)


def parse_board(text: str) -> tuple[float | None, int | None]:
    """Power limit (W) and compute capability of the first row of ``BOARD_QUERY``."""
    first = strip_control(text).strip().partition("\n")[0].split(",")
    if len(first) != 2:
        return None, None
    sm = re.fullmatch(r"\s*(\d{1,2})\.(\d)", first[1].rstrip())
    return _figure(first[0].strip()), int(sm[1] + sm[2]) if sm else None


def refusals(check: Check, seen: FoundHardware) -> tuple[Refusal, ...]:
    """Every way in which what was found falls short of what was rented."""
    found: list[Refusal] = []
    if check.asks_for_gpus:
        found += [Refusal(f"nvidia-smi says: {line}") for line in seen.complaints[:_MAX_TOLD]]
        found += _wrong_gpus(check, seen.gpus)
        found += _unread_driver(check, seen)
        found += _wrong_board(check, seen)
    if check.volume:
        found += _wrong_mount(check.mount, seen.mounts)
    return tuple(found)


def wrong_image(expected: str, found: str | None) -> str:
    """Why an image is not the one that was asked for, by its torch; '' where it may be. One
    without any gets one of ours, and what is not said of a build is not held against it."""
    if not expected or found is None:
        return ""
    (release, _, build), (want, _, want_build) = found.partition("+"), expected.partition("+")
    if release == want and build in ("", want_build):
        return ""
    return f"the image has torch {strip_control(found)[:40]}, not {expected}"


def _wrong_gpus(check: Check, gpus: Sequence[GpuSeen]) -> list[Refusal]:
    if not gpus:
        return [Refusal("this machine shows no GPU")]
    found = []
    if check.count and len(gpus) != check.count:
        found.append(Refusal(f"{_gpus(check.count)} rented, {len(gpus)} found"))
    told = 0
    for index, gpu in enumerate(gpus):
        wrong = _wrong_gpu(check, gpu)
        if wrong is not None and told < _MAX_TOLD:
            told += 1
            found.append(Refusal(f"GPU {index}: {wrong.text}", wrong.may_pass))
    return found


def _wrong_gpu(check: Check, gpu: GpuSeen) -> Refusal | None:
    if check.gpu and not any(_matches(pattern, gpu.name) for pattern in check.gpu):
        return Refusal(f"{' or '.join(check.gpu)} rented, {gpu.name} found")
    if _is_slice(gpu.name) and not any(_is_slice(pattern) for pattern in check.gpu):
        return Refusal(f"{gpu.name} is a slice of a GPU, a whole one was rented")
    if gpu.total_mib is None:
        if check.memory_gb or check.idle:
            return Refusal(f"its memory cannot be read: {gpu.raw}")
        return None
    total_gb = gpu.total_mib * _MIB / 1e9
    if total_gb < _MEMORY_SLACK * check.memory_gb:
        return Refusal(f"{check.memory_gb:g} GB rented, {total_gb:.0f} GB found")
    if not check.idle:
        return None
    if gpu.used_mib is None:
        return Refusal(f"the memory in use cannot be read: {gpu.raw}")
    if gpu.used_mib > _BUSY_SHARE * gpu.total_mib:
        return Refusal(f"{gpu.used_mib:.0f} MiB of its memory are in use", may_pass=True)
    # Some GPUs do not tell; what is in use of their memory then has to do.
    if gpu.busy_percent is not None and gpu.busy_percent > 100 * _BUSY_SHARE:
        return Refusal(f"it is {gpu.busy_percent:.0f} % busy", may_pass=True)
    return None


def _unread_driver(check: Check, seen: FoundHardware) -> list[Refusal]:
    if not seen.gpus or not (check.count or check.board) or seen.driver is not None:
        return []
    return [Refusal(f"the driver's version cannot be read: {seen.gpus[0].driver}")]


def _wrong_board(check: Check, seen: FoundHardware) -> list[Refusal]:
    board = seen.board_seen()
    if board is None or not is_worse(board.board.form, check.board):
        return []
    found = board.board
    if found.form in check.slower_boards:
        return []
    return [Refusal(f"{found.family} {check.board} rented, {found.text} found (by {found.by})")]


def _wrong_mount(mount: str, mounts: str) -> list[Refusal]:
    for line in reversed(mounts.splitlines()):  # the last one mounted lies on top
        fields = line.split()
        if len(fields) >= 4 and _unescaped(fields[1]) == mount and mount != "/":
            if "ro" in fields[3].split(","):
                return [Refusal(f"{mount} is mounted read-only")]
            return []
    return [Refusal(f"{mount} is not a volume but the container's own disk")]


def _matches(pattern: str, name: str) -> bool:
    pattern, name = pattern.lower(), name.lower()
    if "*" in pattern or "?" in pattern:
        return fnmatch.fnmatchcase(name, pattern)
    return pattern in name


def _is_slice(name: str) -> bool:
    return re.search(r"\bMIG\b", name) is not None


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"


def _figure(text: str) -> float | None:
    return float(text) if re.fullmatch(r"\d{1,9}(\.\d{1,6})?", text) else None


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
