"""Import of an exported script's training: its best checkpoint, and its cost as counted by its own
clock."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import Any

from trmcloud.core.contract.manifest import CheckpointManifest
from trmcloud.core.contract.pod_contract import PODS_DIR, parse_pod_name
from trmcloud.core.errors import CheckpointError, ConflictError, NotFoundError, Outcome
from trmcloud.core.money import Usd, cost
from trmcloud.core.values import Value
from trmcloud.export.standalone import Spec, StandaloneRun, read_spec
from trmcloud.io.files import read_small
from trmcloud.operations.checkpoints.fetching import best_of
from trmcloud.pod.agent.attempts import (
    RECORD_NAME,
    StandaloneAttempts,
    ended_at,
    read_lives,
    used_s,
)
from trmcloud.pod.agent.watchdog import POD_NAME
from trmcloud.ports.machine import RunFiles

USUAL = "trmcloud-run"
_RUN_ID = re.compile(r"r-[0-9a-f]{6}")


class AdoptedRun(Value):
    """``cost`` is rate × time by the machine's own clock, ``None`` for ``outcome`` while it goes
    on; what a provider bills is not known here."""

    run_id: str
    recipe: str
    hardware: str
    outcome: Outcome | None
    why: str
    starts: int
    used_s: float
    rate: Usd
    cost: Usd
    planned: Usd
    worst_case: Usd
    best: CheckpointManifest


def find_folder(folder: Path) -> Path:
    """The script's RUN_DIR: ``folder``, or ``trmcloud-run`` in it.

    Raises:
        NotFoundError: neither is one.
    """
    for each in (folder, folder / USUAL):
        if (each / RECORD_NAME).is_file():
            return each
    raise NotFoundError(
        "no exported script has run here: there is no " + RECORD_NAME,
        where=str(folder),
        next_step=f"give the script's RUN_DIR (default: {USUAL})",
    )


def read_adopted_run(root: Path, files: RunFiles) -> AdoptedRun:
    """The run in ``root``, whose ``runs/`` ``files`` reads.

    Raises:
        ConflictError: the record of its starts is damaged. UsageError: so is its plan.
        NotFoundError, CheckpointError: nothing whole was saved.
    """
    lives = read_lives(root)
    if lives is None or lives.last is None or not _is_ours(lives):
        raise ConflictError("this is not a record of a script's run", where=str(root / RECORD_NAME))
    spec = read_spec(root / "spec.json")
    run = StandaloneRun(root)
    last = lives.last
    over = run.over(last)
    rate, used = _accounted(root, lives, spec)
    return AdoptedRun(
        run_id=lives.run_id,
        recipe=lives.recipe,
        hardware=spec.candidate.hardware,
        outcome=run.outcome(last) if over else None,
        why=run.why(last),
        starts=len(lives.lives),
        used_s=used,
        rate=rate,
        cost=cost(rate, used),
        planned=min(spec.candidate.cost_p50, spec.candidate.worst_case),
        worst_case=spec.candidate.worst_case,
        best=_best(lives.run_id, files, root),
    )


def _accounted(root: Path, lives: StandaloneAttempts, spec: Spec) -> tuple[Usd, float]:
    """The rate of its last start, and the seconds of all of them, time given anew included."""
    ends = {life.number: ended_at(root, lives, life) for life in lives.lives}
    groups: list[list[Any]] = []
    for life in lives.lives:
        if life.again or not groups:
            groups.append([])
        groups[-1].append(life)
    used = 0.0
    for group in groups:
        part = StandaloneAttempts(lives.run_id, lives.ledger, lives.recipe, tuple(group))
        used += used_s(part, ends, spec.clock, max(ends[life.number] for life in group))
    rate = spec.candidate.rate
    assert lives.last is not None
    with contextlib.suppress(ValueError, KeyError, TypeError):
        text = read_small(root / PODS_DIR / lives.last.pod / POD_NAME)
        rate = Usd(str(json.loads(text or "null")["rate_usd_per_hour"]))
    return rate, used


def _best(run_id: str, files: RunFiles, root: Path) -> CheckpointManifest:
    best = best_of(files.manifests(run_id))
    if best is not None:
        return best
    damaged = files.damaged(run_id)
    if damaged:
        label, why = damaged[0]
        raise CheckpointError(f"it has no complete checkpoint; {label}: {why}", where=str(root))
    raise NotFoundError(f"{run_id} saved no checkpoint", where=str(root))


def _is_ours(lives: StandaloneAttempts) -> bool:
    """It may come from another machine: its names become paths here."""
    named = all(parse_pod_name(str(life.pod)) is not None for life in lives.lives)
    return named and _RUN_ID.fullmatch(str(lives.run_id)) is not None
