"""The first machine's side of a sweep on several machines: it hands intervals to the others.

Another machine connects, tells every second what its trials do, and gets in the answer what to
start, to land and to kill. The checkpoints of all trials are at home on the first machine: a trial
that continues is sent its own, and what an interval has made is brought here before the interval
counts as ended. So a trial continues on any machine, and a machine that is lost takes with it what
ran there and nothing else.

An interval is known by trial and attempt. What another machine tells of one that is not in the
table here (it was given up, or belongs to an executor before this one) is answered with ``done``:
it is ended there and forgotten. An answer that comes twice, or late, changes nothing.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.manifest import CheckpointManifest
from trmcloud.core.contract.trainer_contract import Heartbeat, load_heartbeat
from trmcloud.core.values import replace
from trmcloud.io.files import write_atomic
from trmcloud.pod.job.parts import Channel, Refused
from trmcloud.pod.sweep.children import Child, Children, MachineLost, TrialStart
from trmcloud.pod.sweep.exchange import (
    Interval,
    read_intervals,
    receive_checkpoints,
    send_checkpoints,
)

SILENT_S = 30.0
"""A machine that has been there and is not heard for so long is lost, until it is heard again."""
JOIN_WITHIN_S = 300.0
"""From the executor's start, a machine that has not been there yet is waited for so long."""
_KILL_WITHIN_S = 10.0
_MOST_TRIES = 3
"""Checkpoints that did not come so many times in a row do not come."""
_MOST_FAILURES = 3
"""A machine on which so many intervals in a row could not be run is given no more."""
_OVER_WITHIN_S = 5.0
_MOST_CONNECTIONS = 16
"""Beside one of each machine: more are not answered."""
_MOST_LOG_CHARS = 4096


@dataclass
class _Interval:
    """One that runs, or is to be started, on another machine; guarded by the fleet's lock."""

    start: TrialStart
    key: Interval
    is_sent: bool = False
    lands: bool = False
    is_killed: bool = False
    code: int | None = None
    """Its exit code, once it has ended there."""
    is_here: bool = False
    """Whether its checkpoints have come."""
    tries: int = 0
    """How often its checkpoints were on their way, there or back, since something came of it."""
    lost: str = ""
    """Why it is lost; empty: it is not."""


@dataclass
class _Node:
    """Another machine."""

    rank: int
    heard_at: float
    """In steady seconds; until it has been here, when it was first waited for."""
    worker: str = ""
    """The process there, by a random word; empty: none has been here."""
    channel: Channel | None = None
    intervals: dict[Interval, _Interval] = field(default_factory=dict)
    failures: int = 0
    """Intervals in a row that it could not run."""
    is_over: bool = False
    """Whether it was told that the sweep is."""


class Fleet:
    """The trials of a sweep on ``nodes`` machines with ``per_node`` slots each: the first slots are
    this machine's, whose trials ``here`` starts, and which keeps all folders.

    ``key`` is the machines' common one, ``address`` where this one listens; ``say`` puts a line
    into the log; ``now`` is epoch seconds, ``steady`` seconds of a clock that cannot be set.
    """

    def __init__(
        self,
        here: Children,
        run: tuple[str, str],
        nodes: int,
        per_node: int,
        key: str,
        address: tuple[str, int],
        say: Callable[[str], None],
        *,
        now: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Raises:
            OSError: it cannot listen there.
        """
        self._here, self._run, self._key, self._say = here, run, key, say
        self._per_node, self._now, self._steady = per_node, now, steady
        self._changed = threading.Condition()
        self._nodes = {rank: _Node(rank, steady()) for rank in range(1, nodes)}
        self._is_over = False
        self._room = threading.Semaphore(nodes + _MOST_CONNECTIONS)
        self._server = socket.create_server(address, backlog=nodes)
        self.port: int = self._server.getsockname()[1]
        threading.Thread(target=self._accept, name="fleet", daemon=True).start()

    # -- what the executor asks -------------------------------------------------------------------

    def beat(self, trial: int) -> Heartbeat | None:
        return self._here.beat(trial)

    def manifests(self, trial: int) -> list[CheckpointManifest]:
        return self._here.manifests(trial)

    def folder(self, trial: int) -> Path:
        return self._here.folder(trial)

    def open_slots(self) -> frozenset[int]:
        """This machine's, and those of the machines that are connected."""
        with self._changed:
            there = [
                node.rank
                for node in self._nodes.values()
                if node.channel is not None and not self._is_lost(node)
            ]
        return self._here.open_slots() | {slot for rank in there for slot in self._slots_of(rank)}

    def lost_slots(self) -> int:
        with self._changed:
            return self._per_node * sum(self._is_lost(node) for node in self._nodes.values())

    def start(self, start: TrialStart) -> Child:
        rank = start.slot // self._per_node
        if rank == 0:
            return self._here.start(start)
        folder = self.folder(start.trial)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / contract.HEARTBEAT_NAME).unlink(missing_ok=True)
        interval = _Interval(start, (start.trial, start.attempt))
        with self._changed:
            self._nodes[rank].intervals[interval.key] = interval
        return _RemoteTrial(self, self._nodes[rank], interval)

    def close(self) -> None:
        """Tell the other machines that the sweep is over; those that are here within seconds."""
        until = time.monotonic() + _OVER_WITHIN_S
        with self._changed:
            self._is_over = True
            while any(node.channel and not node.is_over for node in self._nodes.values()):
                if not self._changed.wait(max(0.0, until - time.monotonic())):
                    break
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._server.close()

    # -- one interval -----------------------------------------------------------------------------

    def poll(self, node: _Node, interval: _Interval) -> int | None:
        """
        Raises:
            MachineLost: its machine is.
        """
        with self._changed:
            if self._is_lost(node) and not interval.lost:
                silent = f"machine {node.rank} has not answered for {SILENT_S:.0f} s"
                failing = f"nothing runs on machine {node.rank}"
                interval.lost = silent if node.failures < _MOST_FAILURES else failing
            if interval.lost:
                raise MachineLost(interval.lost)
            return interval.code if interval.is_here else None

    def land(self, interval: _Interval) -> None:
        with self._changed:
            interval.lands = True

    def kill(self, node: _Node, interval: _Interval) -> None:
        """End it there; return once what it saved is here, and at most ``_KILL_WITHIN_S`` later.
        From then on nothing that is told of it counts."""
        until = time.monotonic() + _KILL_WITHIN_S
        with self._changed:
            interval.is_killed = True
            while interval.is_sent and not (interval.is_here or interval.lost):
                if not self._changed.wait(max(0.0, until - time.monotonic())):
                    break
            node.intervals.pop(interval.key, None)
            if interval.code is None:
                interval.code = -9

    # -- the other machines -----------------------------------------------------------------------

    def _slots_of(self, rank: int) -> range:
        return range(rank * self._per_node, (rank + 1) * self._per_node)

    def _is_lost(self, node: _Node) -> bool:
        patience_s = SILENT_S if node.worker else JOIN_WITHIN_S
        is_silent = node.channel is None and self._steady() - node.heard_at >= patience_s
        return is_silent or node.failures >= _MOST_FAILURES

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            if not self._room.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        node, channel = None, None
        try:
            with connection, contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                channel = Channel(connection, self._key, asks=True)
                node = self._greet(channel)
                while self._round(channel, node):
                    pass
        finally:
            self._room.release()
            with self._changed:
                if node is not None and node.channel is channel:
                    node.channel = None
                    if not node.is_over:
                        self._say(f"machine {node.rank} has gone")
                self._changed.notify_all()

    def _greet(self, channel: Channel) -> _Node:
        """Take up a machine that connects: what runs there by an order from here goes on."""
        said = channel.hear()
        rank, worker, runs = said["rank"], str(said["worker"])[:64], read_intervals(said["runs"])
        if type(rank) is not int or rank not in self._nodes or not worker:
            raise Refused("no machine of this sweep")
        node = self._nodes[rank]
        with self._changed:
            if worker != node.worker:
                ran = [e for e in node.intervals.values() if e.is_sent and not e.is_here]
                for interval in ran:
                    interval.lost = f"what ran it on machine {rank} was started again"
                node.failures += bool(ran)
                self._say(f"machine {rank} is here")
            node.worker, node.channel, node.heard_at = worker, channel, self._steady()
            kept = [key for key in runs if self._held(node, key) is not None]
            for key, interval in node.intervals.items():
                # The order to start it may have been lost with the connection.
                interval.is_sent &= key in runs or bool(interval.lost)
            self._changed.notify_all()
        channel.send({"keep": kept})
        return node

    def _held(self, node: _Node, key: Interval) -> _Interval | None:
        interval = node.intervals.get(key)
        return interval if interval is not None and not interval.lost else None

    def _round(self, channel: Channel, node: _Node) -> bool:
        """Hear what a machine tells, answer it, and exchange checkpoints; False at the end."""
        said = channel.hear()
        reported = read_intervals(said["runs"])
        with self._changed:
            if node.channel is not channel:
                return False  # another connection has taken its place
            node.heard_at = self._steady()
            for row in said["beats"]:
                self._note_beat(node, row)
            for row in said["ended"]:
                self._note_end(node, row)
            for each in node.intervals.values():
                if each.tries >= _MOST_TRIES and not each.is_here:
                    self._fail(node, each, "its checkpoints do not come whole")
            held = [each for each in node.intervals.values() if not each.lost]
            starts = [each for each in held if not each.is_sent and not each.is_killed]
            takes = [e for e in held if e.code is not None and e.is_sent and not e.is_here]
            for each in (*starts, *takes):
                each.tries += 1
            answer = {
                "start": [self._order(each) for each in starts],
                "take": [each.key for each in takes],
                "land": [e.key for e in held if e.lands and e.code is None],
                "kill": [e.key for e in held if e.is_killed and e.code is None],
                "done": [k for k in reported if self._held(node, k) is None],
                "over": self._is_over,
            }
        channel.send(answer)
        for interval in starts:
            self._give(channel, interval)
        for interval in takes:
            self._take(channel, node, interval)
        if answer["over"]:
            with self._changed:
                node.is_over = True
        return not answer["over"]

    def _order(self, interval: _Interval) -> dict[str, Any]:
        """Return the order to start it. Instants are sent as seconds from now: clocks differ."""
        start = interval.start
        return {
            "trial": start.trial,
            "attempt": start.attempt,
            "values": dict(start.values),
            "slot": start.slot % self._per_node,
            "within_s": start.deadline_at - self._now(),
            "most_s": start.most_s,
            "is_fresh": start.is_fresh,
        }

    def _fail(self, node: _Node, interval: _Interval, why: str) -> None:
        if not interval.lost:
            interval.lost = f"machine {node.rank}: {why}"
            node.failures += 1
            self._changed.notify_all()

    def _give(self, channel: Channel, interval: _Interval) -> None:
        interval.is_sent = True
        if not interval.start.is_fresh:
            send_checkpoints(channel, self._checkpoints(interval.key[0]))

    def _take(self, channel: Channel, node: _Node, interval: _Interval) -> None:
        def moved() -> None:
            node.heard_at = self._steady()

        @contextlib.contextmanager
        def installing() -> Iterator[bool]:
            with self._changed:
                yield self._held(node, interval.key) is interval

        folder = self._checkpoints(interval.key[0])
        whole = receive_checkpoints(
            channel, folder, run=self._run, moved=moved, installing=installing
        )
        with self._changed:
            interval.is_here = whole
            if whole:
                node.failures = 0
            self._changed.notify_all()

    def _note_beat(self, node: _Node, row: Sequence[Any]) -> None:
        trial, attempt, age_s, text = row
        [key] = read_intervals([[trial, attempt]])
        interval = self._held(node, key)
        if interval is None or interval.is_here:
            return
        interval.tries = 0  # it runs there
        beat = load_heartbeat(str(text))
        if (beat.run_id, beat.phase, beat.attempt) != (*self._run, interval.start.attempt):
            raise Refused("a heartbeat of another training")
        beat = replace(beat, at=self._now() - max(0.0, float(age_s)))
        with contextlib.suppress(OSError):
            path = self.folder(trial) / contract.HEARTBEAT_NAME
            write_atomic(path, contract.dump(beat), durable=False)

    def _note_end(self, node: _Node, row: Sequence[Any]) -> None:
        trial, attempt, code, log = row
        [key] = read_intervals([[trial, attempt]])
        interval = self._held(node, key)
        if interval is None or interval.code is not None:
            return
        text = str(log)[-_MOST_LOG_CHARS:]
        with (
            contextlib.suppress(OSError),
            open(self.folder(trial) / contract.TRAIN_LOG_NAME, "a", encoding="utf-8") as file,
        ):
            file.write(text + "\n")
        if code is None:
            self._fail(node, interval, f"it could not be started: {text}")
        elif type(code) is int:
            interval.code, interval.tries = code, 0
        self._changed.notify_all()

    def _checkpoints(self, trial: int) -> Path:
        return self.folder(trial) / contract.CHECKPOINTS_DIR


class _RemoteTrial:
    """A trial on another machine."""

    def __init__(self, fleet: Fleet, node: _Node, interval: _Interval) -> None:
        self._fleet, self._node, self._interval = fleet, node, interval

    @property
    def is_arriving(self) -> bool:
        return self._interval.code is not None and not self._interval.is_here

    def poll(self) -> int | None:
        return self._fleet.poll(self._node, self._interval)

    def land(self) -> None:
        self._fleet.land(self._interval)

    def kill(self) -> None:
        self._fleet.kill(self._node, self._interval)
