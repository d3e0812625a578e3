"""Saved plans: ``<home>/plans/p-7f3a.json``, written whole or not at all."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

from trmcloud.app.home import make_home
from trmcloud.core.errors import ConflictError, NotFoundError, UsageError
from trmcloud.core.spec.plan import Plan, PlanTooNew, plan_from_json, plan_to_json
from trmcloud.core.spec.spec import RunSpec
from trmcloud.io.files import write_atomic

PLANS_DIR = "plans"
_ID = re.compile(r"p-[0-9a-f]{4,8}")
_KEPT = 200


def is_plan_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


def new_id(home: Path, spec: RunSpec, now: float) -> str:
    """An id no saved plan bears: ``p-`` and four to eight hex digits of a hash."""
    digest = hashlib.sha256(f"{now!r} {json.dumps(spec.to_json())}".encode()).hexdigest()
    for length in range(4, 9):
        if not _path(home, f"p-{digest[:length]}").exists():
            break
    return f"p-{digest[:length]}"


def save(home: Path, plan: Plan) -> Path:
    """Writes ``plan``; the oldest beyond two hundred go.

    Raises:
        ConflictError: the folder cannot be written.
    """
    path = _path(home, plan.id)
    try:
        make_home(home)
        path.parent.mkdir(exist_ok=True)
        write_atomic(path, json.dumps(plan_to_json(plan)))
        _forget_old(path.parent)
    except OSError as error:
        raise ConflictError(
            f"the plan cannot be saved: {error.strerror or error}",
            where=str(path.parent),
            next_step="set TRMCLOUD_HOME to a folder of yours that has room",
        ) from None
    return path


def load(home: Path, plan_id: str, now: float) -> Plan:
    """The saved plan ``plan_id``.

    Raises:
        UsageError: not a plan's id, damaged, or expired at ``now`` (epoch s).
        NotFoundError: no such plan.
    """
    if not is_plan_id(plan_id):
        raise UsageError(f"{plan_id!r} is no plan's id", next_step="ids look like p-7f3a")
    path = _path(home, plan_id)
    try:
        plan = plan_from_json(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise NotFoundError(f"no plan {plan_id}", next_step="make one: trmcloud plan") from None
    except PlanTooNew:
        raise UsageError(
            f"plan {plan_id} was written by a newer version of trmcloud",
            where=str(path),
            next_step="pip install --upgrade trmcloud, or make another: trmcloud plan",
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is damaged"
        raise UsageError(
            f"plan {plan_id} cannot be read: {why}", where=str(path), next_step="trmcloud plan"
        ) from None
    if now > plan.expires_at:
        hours = (now - plan.expires_at) / 3600
        raise UsageError(
            f"plan {plan_id} expired {hours:,.1f} h ago: its prices are no longer to be trusted",
            next_step="trmcloud plan",
        )
    return plan


def _path(home: Path, plan_id: str) -> Path:
    return home / PLANS_DIR / f"{plan_id}.json"


def _forget_old(folder: Path) -> None:
    paths = list(folder.glob("p-*.json"))
    if len(paths) <= _KEPT:
        return
    paths.sort(key=lambda path: path.stat().st_mtime)
    for path in paths[: len(paths) - _KEPT]:
        path.unlink(missing_ok=True)
