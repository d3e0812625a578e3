"""The process of a sweep on a machine that is not the first: it runs intervals for the executor.

It connects to the first machine, tells what its trials do, and obeys the answers. It decides
nothing about the sweep: that it is told to stop is for the executor to act on, which is told as
well; where that cannot be reached, it lands its trials by itself.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
import shutil
import signal
import socket
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.command import OFFSPRING_NAME
from trmcloud.core.contract.trainer_contract import (
    ENV_ATTEMPT,
    ENV_DEADLINE_AT,
    ENV_JOB,
    Heartbeat,
    PhaseJob,
)
from trmcloud.core.contract.trainer_contract import load_job as load_phase_job
from trmcloud.core.sweep.job import SWEEP_NAME, load_job
from trmcloud.core.text import one_line
from trmcloud.io.files import read_small, write_atomic
from trmcloud.pod.job.parts import PORT, Channel, Refused
from trmcloud.pod.job.process import kill_all, offspring
from trmcloud.pod.machine import processes
from trmcloud.pod.sweep.children import Child, Children, TrialProcesses, TrialStart
from trmcloud.pod.sweep.exchange import (
    Interval,
    key_of,
    read_intervals,
    receive_checkpoints,
    send_checkpoints,
)
from trmcloud.pod.sweep.executor import SweepClock, SystemClock, last_line

HEAD_SILENT_S = 180.0
"""A first machine that has been heard and is silent for so long is not waited for."""
HEARD_NAME = "first-machine-heard"
"""In the sweep's folder: the first machine has been heard, by this process or one before it."""
_ROUND_S = 0.3
_AGAIN_S = 1.0
_CONNECT_WITHIN_S = 5.0
_LAND_ALONE_S = 10.0
"""A worker that was told to stop, and cannot reach the first machine for so long, lands alone."""
_BACKSTOP_S = 15.0
"""The first machine kills an interval at its limit; this one does so much later."""
_NOTE_EVERY_S = 2.0
_KILL_WITHIN_S = 10.0
_MOST_LOG_CHARS = 1000


@dataclass
class _Held:
    """An interval that runs here, or has ended and is not forgotten yet."""

    start: TrialStart
    kill_at: float
    child: Child | None
    """None: it could not be started."""
    is_landing: bool = False
    has_ended: bool = False
    code: int | None = None
    log: str = ""


class Worker:
    """``trials`` are this machine's; ``address`` is the first one's, ``key`` the machines' common
    one; ``deadline_at`` the soft stop in epoch seconds."""

    def __init__(
        self,
        job: PhaseJob,
        trials: Children,
        rank: int,
        key: str,
        address: tuple[str, int],
        clock: SweepClock,
        *,
        attempt: int = 1,
        deadline_at: float = math.inf,
    ) -> None:
        self._job, self._trials, self._rank, self._key = job, trials, rank, key
        self._address, self._clock = address, clock
        self._folder = Path(job.out_dir)
        self._attempt, self._deadline_at = attempt, deadline_at
        self._word = secrets.token_hex(16)
        self._held: dict[Interval, _Held] = {}
        self._is_over = self._asked = False
        self._heard_at = clock.steady() if (self._folder / HEARD_NAME).exists() else math.inf
        self._noted_at = -math.inf
        self._signs = 0

    def ask_to_stop(self) -> None:
        self._asked = True

    def run(self) -> tuple[str, str]:
        """Until the sweep is over, or the first machine has gone; returns outcome and message."""
        while True:
            with (
                contextlib.suppress(OSError, ValueError, KeyError, TypeError),
                socket.create_connection(self._address, timeout=_CONNECT_WITHIN_S) as connection,
            ):
                self._talk(Channel(connection, self._key, asks=False))
            ended = self._look_alone()
            if ended is not None:
                self._drop_all()
                return ended
            self._clock.sleep(_AGAIN_S)

    def write_heartbeat(self, state: str, outcome: str | None = None, message: str = "") -> None:
        pid = os.getpid()
        beat = Heartbeat(
            run_id=self._job.run_id,
            phase=self._job.phase,
            attempt=self._attempt,
            pid=pid,
            pid_started=processes.started(pid) or "",
            at=self._clock.now(),
            state=state,
            step=0,
            steps=0,
            outcome=outcome,
            message=one_line(message)[:1000],
            signs=self._signs,
        )
        with contextlib.suppress(OSError):
            path = self._folder / contract.HEARTBEAT_NAME
            write_atomic(path, contract.dump(beat), durable=state == "ended")

    # -- alone --------------------------------------------------------------------------------

    def _look_alone(self) -> tuple[str, str] | None:
        """Without a connection: the outcome, once there is nothing to wait for."""
        self._look()
        if self._is_over:
            return "landed_signal" if self._asked else "finished", "the sweep is over"
        silent_s = self._clock.steady() - self._heard_at
        if silent_s >= HEAD_SILENT_S:
            return "bad_config", f"the first machine has not answered for {silent_s:.0f} s"
        is_late = self._clock.now() >= self._deadline_at
        if not (self._asked or is_late) or (silent_s < _LAND_ALONE_S and self._held):
            return None
        for held in self._held.values():
            _land(held)
        if all(held.has_ended for held in self._held.values()):
            return "landed_signal" if self._asked else "landed_deadline", "asked to stop"
        return None

    def _look(self) -> None:
        """At what runs here."""
        steady = self._clock.steady()
        for key, held in self._held.items():
            if held.child is None or held.has_ended:
                continue
            code = held.child.poll()
            if code is None and steady >= held.kill_at:
                held.child.kill()
                code = held.child.poll()
                code = -signal.SIGKILL if code is None else code
            if code is not None:
                held.child.kill()  # what it has left behind
                held.has_ended, held.code = True, code
                said = last_line(self._trials.folder(key[0]) / contract.TRAIN_LOG_NAME)
                held.log = said[-_MOST_LOG_CHARS:]
                self._signs += 1
        if steady - self._noted_at >= _NOTE_EVERY_S:
            self._noted_at = steady
            self.write_heartbeat("training")
            with contextlib.suppress(OSError):
                path = self._folder / OFFSPRING_NAME
                found = sorted(offspring(os.getpid()).items())
                write_atomic(path, json.dumps(found), durable=False)

    def _drop_all(self) -> None:
        for key in tuple(self._held):
            self._drop(key)
        (self._folder / OFFSPRING_NAME).unlink(missing_ok=True)

    def _drop(self, key: Interval) -> None:
        """End and forget an interval. The first machine has its checkpoints, or wants none."""
        held = self._held.pop(key, None)
        if held is None:
            return
        if held.child is not None:
            held.child.kill()
        if not any(trial == key[0] for trial, _ in self._held):
            shutil.rmtree(self._checkpoints(key[0]), ignore_errors=True)

    # -- with the first machine -----------------------------------------------------------------

    def _talk(self, channel: Channel) -> None:
        """Until the sweep is over.

        Raises:
            OSError: the first machine has gone.
        """
        channel.send({"rank": self._rank, "worker": self._word, "runs": list(self._held)})
        kept = set(read_intervals(channel.hear()["keep"]))
        for key in set(self._held) - kept:
            self._drop(key)
        self._note_heard(first=True)
        while not self._is_over:
            self._look()
            channel.send(
                {
                    "runs": list(self._held),
                    "beats": list(self._beats()),
                    "ended": [
                        (*key, held.code, held.log)
                        for key, held in self._held.items()
                        if held.has_ended
                    ],
                }
            )
            said = channel.hear()
            self._note_heard()
            self._obey(channel, said)
            self._clock.sleep(_ROUND_S)

    def _note_heard(self, *, first: bool = False) -> None:
        self._heard_at = self._clock.steady()
        if first:
            with contextlib.suppress(OSError):
                write_atomic(self._folder / HEARD_NAME, "", durable=False)

    def _beats(self) -> Iterator[tuple[int, int, float, str]]:
        now = self._clock.now()
        for (trial, attempt), held in self._held.items():
            beat = self._trials.beat(trial) if held.child is not None else None
            if beat is not None and beat.attempt == attempt:
                yield trial, attempt, max(0.0, now - beat.at), contract.dump(beat)

    def _obey(self, channel: Channel, said: Mapping[str, Any]) -> None:
        for key in read_intervals(said["done"]):
            self._drop(key)
        for order in said["start"]:
            self._start(channel, order)
        for key in read_intervals(said["take"]):
            if key not in self._held:
                raise Refused("an interval that is not here")
            send_checkpoints(channel, self._checkpoints(key[0]))
        for key in read_intervals(said["land"]):
            if key in self._held:
                _land(self._held[key])
        for key in read_intervals(said["kill"]):
            held = self._held.get(key)
            if held is not None and held.child is not None:
                held.child.kill()
        self._is_over = bool(said["over"])

    def _start(self, channel: Channel, order: Mapping[str, Any]) -> None:
        [key] = read_intervals([[order["trial"], order["attempt"]]])
        is_fresh = bool(order["is_fresh"])
        for earlier in [each for each in self._held if each[0] == key[0]]:
            self._drop(earlier)
        steady, now = self._clock.steady(), self._clock.now()
        start = TrialStart(
            trial=key[0],
            values=dict(order["values"]),
            slot=int(order["slot"]),
            attempt=key[1],
            deadline_at=now + float(order["within_s"]),
            is_fresh=is_fresh,
        )
        held = _Held(start, steady + float(order["most_s"]) + _BACKSTOP_S, None)
        whole = is_fresh or receive_checkpoints(
            channel,
            self._checkpoints(key[0]),
            run=(self._job.run_id, self._job.phase),
            moved=self._note_heard,
            installing=lambda: contextlib.nullcontext(True),
        )
        self._held[key] = held  # not before: what has not come whole is ordered again
        try:
            if not whole:
                raise OSError("its checkpoints did not come whole")
            held.child = self._trials.start(start)
            self._signs += 1
        except OSError as error:
            held.has_ended, held.log = True, one_line(str(error))[:_MOST_LOG_CHARS]

    def _checkpoints(self, trial: int) -> Path:
        return self._trials.folder(trial) / contract.CHECKPOINTS_DIR


def _land(held: _Held) -> None:
    """Ask a trial to land, once."""
    if held.child is not None and not held.is_landing and not held.has_ended:
        held.is_landing = True
        held.child.land()


def main() -> None:
    environment = dict(os.environ)
    job = load_phase_job(read_small(Path(environment[ENV_JOB])) or "")
    sweep = load_job(read_small(Path(job.code_dir) / SWEEP_NAME) or "")
    processes.adopt_orphans()
    nodes, cores = int(environment["NNODES"]), len(os.sched_getaffinity(0))
    trials = TrialProcesses(job, sweep.terms.slots // nodes, environment, cores, nodes)
    key = key_of(job, environment)
    if not key:
        sys.exit("the machines of this pod have no common key")
    deadline = environment.get(ENV_DEADLINE_AT, "")
    worker = Worker(
        job,
        trials,
        int(environment["NODE_RANK"]),
        key,
        (environment["MASTER_ADDR"], PORT),
        SystemClock(),
        attempt=int(environment.get(ENV_ATTEMPT, "1")),
        deadline_at=float(deadline) if deadline else math.inf,
    )

    def on_term(signum: int, frame: FrameType | None) -> None:
        worker.ask_to_stop()

    signal.signal(signal.SIGTERM, on_term)
    worker.write_heartbeat("starting")
    outcome, message = "crashed", "the sweep's worker failed"
    try:
        outcome, message = worker.run()
    finally:
        kill_all(os.getpid(), _KILL_WITHIN_S)
        print(f"trmcloud: {outcome}: {message}", flush=True)
        worker.write_heartbeat("ended", outcome, message)


if __name__ == "__main__":
    main()
