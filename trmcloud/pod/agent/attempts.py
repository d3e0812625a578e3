"""The time that a standalone run has used: one record below its folder, a life for each start.

A life is one pod: from a start of the script to the end of all its processes. The time that the
budget buys is given once. A second start in the same folder gets what the first one left, whatever
ended it; only a start that is told ``again`` gets it anew.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, Mapping

from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.errors import ConflictError
from trmcloud.core.values import Value, replace
from trmcloud.io.files import load_small, read_small, write_atomic
from trmcloud.pod.agent.watchdog import UNSEEN_S, last_sign_of, noted_end

RECORD_NAME = "standalone.json"
WALL, PAID = "wall", "paid"
"""The ways to count used time: all time since the first start (a machine that is rented costs money
while the script does not run), or only the time of each life (a queue bills nothing in between)."""


class StandaloneAttempt(Value):
    """``again``: it began with its time given anew. ``gave_up`` is why the script ended it before
    it could train."""

    number: int
    pod: str
    started_at: float
    again: bool = False
    gave_up: str = ""


class StandaloneAttempts(Value):
    """``standalone.json``. ``ledger`` stands in the pods' names; no ledger of a user's bears it."""

    run_id: str
    ledger: str
    recipe: str
    lives: tuple[StandaloneAttempt, ...] = ()
    version: int = 1

    @property
    def last(self) -> StandaloneAttempt | None:
        return self.lives[-1] if self.lives else None

    @property
    def counted(self) -> tuple[StandaloneAttempt, ...]:
        """Those that share the time that was given last."""
        first = max((i for i, life in enumerate(self.lives) if life.again), default=0)
        return self.lives[first:]

    def with_life(self, life: StandaloneAttempt) -> StandaloneAttempts:
        return replace(self, lives=(*self.lives, life))

    def gave_up(self, why: str) -> StandaloneAttempts:
        return replace(self, lives=(*self.lives[:-1], replace(self.lives[-1], gave_up=why)))


def read_lives(root: Path) -> StandaloneAttempts | None:
    """The record of the run in ``root``; None where there was no start yet.

    Raises:
        ConflictError: it is damaged: what was used is not known.
    """
    path = root / RECORD_NAME
    try:
        text = read_small(path)
        if text is None:
            return None
        data: dict[str, Any] = json.loads(text)
        rows = [StandaloneAttempt(**row) for row in data.pop("lives")]
        made = StandaloneAttempts(**data, lives=tuple(rows))
        if made.version != 1:
            raise ValueError(f"version {made.version}")
        return made
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConflictError(
            f"this folder's record of its run cannot be read: {error}",
            where=str(path),
            next_step="use another folder: RUN_DIR=…",
        ) from None


def write_lives(root: Path, lives: StandaloneAttempts) -> None:
    write_atomic(root / RECORD_NAME, json.dumps(asdict(lives), indent=1))


def used_s(lives: StandaloneAttempts, ends: Mapping[int, float], clock: str, now: float) -> float:
    """Seconds that are used of the time given. ``ends``: when each life had ended, by its number.

    A clock that was set back gives nothing back.
    """
    counted = lives.counted
    if not counted:
        return 0.0
    if clock == PAID:
        return sum(max(0.0, ends[life.number] - life.started_at) for life in counted)
    latest = max([now, *(ends[life.number] for life in counted)])
    return max(0.0, latest - min(life.started_at for life in counted))


def ended_at(root: Path, lives: StandaloneAttempts, life: StandaloneAttempt) -> float:
    """When a life had ended: as its watchdog noted it, else a moment after its last sign."""
    pod_dir = root / contract.PODS_DIR / life.pod
    at = noted_end(pod_dir)
    if at is None:
        last = last_sign_of(pod_dir, root / contract.RUNS_DIR / lives.run_id)
        at = max(last, life.started_at + UNSEEN_S)
    return at


def report_of(root: Path, life: StandaloneAttempt) -> contract.AgentReport | None:
    """The last word of a life's agent; None where it left none that can be read."""
    path = root / contract.PODS_DIR / life.pod / contract.REPORT_NAME
    return load_small(path, contract.load_report)
