"""The watchdog's own thinking, without a file, a process or a clock of its own.

``watchdog_process.py`` gives it the pod's real body; the simulated world gives it another one.
"""

from __future__ import annotations

from trmcloud.core.clock import Anchor, Instant
from trmcloud.core.contract import pod_contract as contract
from trmcloud.pod.agent.lease_clock import AnchorNote, Anchors, anchor_note

HARD_STOP_GRACE_S = 1.0
HARD_STOP, WORK_DONE, TERMINATED = "hard stop", "its work is done", "terminated"
"""Why it ends a pod."""
RESTART_PAUSE_S = 1.0
NOTE_EVERY_S = 30.0


class Watchdog:
    """The watchdog's thinking: end the pod, start the agent, or go on watching."""

    END, START, WATCH = "end", "start", "watch"

    def __init__(self, anchors: Anchors) -> None:
        self._anchors = anchors
        self._epoch = 0
        self._noted: AnchorNote | None = None
        self._anchor: Anchor | None = None
        self._agent_known = False
        self._restart_boot = 0.0
        self.why = ""

    def look(
        self,
        now: Instant,
        lease: contract.Lease | None,
        *,
        agent_runs: bool,
        agent_done: bool,
        told: bool,
        result: str | None,
    ) -> str:
        """The one next thing to do.

        ``agent_done``: it left of its own will, its work done; on a full disk its report may lack
        the ``result``.
        """
        if lease is not None and (self._anchor is None or lease.epoch > self._epoch):
            self._epoch = lease.epoch
            self._noted = anchor_note(self._anchors, lease, now)
            self._anchor = self._noted.anchor(lease.hard_stop_at, lease.granted_at)
        self._note_time(now)
        held = lease is not None and lease.hold
        if told:
            return self._end(TERMINATED)
        if self._anchor is not None and self._anchor.seconds_left(now) < -HARD_STOP_GRACE_S:
            return self._end(HARD_STOP)
        if self._agent_known and not agent_runs:
            self._agent_known, self._restart_boot = False, now.boot + RESTART_PAUSE_S
        if not self._agent_known:
            done = result is not None or agent_done
            if done and not held:
                return self._end(WORK_DONE)
            if done:
                return self.WATCH  # until the hard stop: the controller has still to pull from it
            if now.boot >= self._restart_boot:
                self._agent_known = True
                return self.START
        return self.WATCH

    def seconds_left(self, now: Instant) -> float | None:
        """Until this watchdog kills by itself; None while it knows no lease."""
        if self._anchor is None:
            return None
        return self._anchor.seconds_left(now) + HARD_STOP_GRACE_S

    def _note_time(self, now: Instant) -> None:
        """A machine that starts anew has lost its boot clock, and its wall clock may be wrong."""
        if self._noted is not None and now.boot - self._noted.seen.boot >= NOTE_EVERY_S:
            self._noted = self._noted.renewed(now)
            self._anchors.write_anchor(self._noted)

    def _end(self, why: str) -> str:
        self.why = why
        return self.END
