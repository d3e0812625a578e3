"""A user's labels of a run: its name, its tags, and the idempotency key of its launch.

A key names one run for good. It is put on record with the plan and its reservation, in one
transaction and before a machine is asked for, together with a hash of the launch's arguments: so
a launch that is repeated finds the run of the first time, whatever became of that command.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any

from trmcloud.core.control.bookkeeping import require_free_name, run_of_key
from trmcloud.core.control.run_state import RunState
from trmcloud.core.errors import UsageError
from trmcloud.core.money import Usd
from trmcloud.core.values import Value
from trmcloud.operations.context import Context, run_by_id
from trmcloud.operations.run_queries import is_driven
from trmcloud.options import LaunchRequest, refuse_tokens

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_ID = re.compile(r"[rp]-[0-9a-f]+|local|all|any")
_TAG = re.compile(r"([A-Za-z0-9][A-Za-z0-9._/-]{0,62})=([^\x00-\x1f\x7f]{0,100})")
_KEY = re.compile(r"[\x21-\x7e]{1,200}")
_MOST_TAGS = 20
_APART = ("typed", "detach", "idempotency_key")
"""Fields of requests that are no arguments of the run itself."""


class Labels(Value):
    """``request`` is the SHA-256 of the launch's arguments; empty where there is no ``key``."""

    name: str = ""
    tags: tuple[tuple[str, str], ...] = ()
    key: str = ""
    request: str = ""


def labels_of(command: str, request: LaunchRequest, *more: Any) -> Labels:
    """Return the labels of a launch; ``more`` are requests beside ``request``.

    Raises:
        UsageError: naming the option at fault.
    """
    for each in (request, *more):
        refuse_tokens(each)
    key = request.idempotency_key
    if "idempotency_key" in request.typed and not _KEY.fullmatch(key):
        raise UsageError(
            "--idempotency-key takes 1 to 200 visible ASCII characters",
            next_step="--idempotency-key build-1234",
        )
    digest = _digest(command, (request, *more)) if key else ""
    name = _checked_name(request.name) if request.name or "name" in request.typed else ""
    return Labels(name, parse_tags("--tag", request.tag), key, digest)


def _checked_name(name: str) -> str:
    if not _NAME.fullmatch(name) or _ID.fullmatch(name):
        raise UsageError(
            "--name takes at most 63 letters, digits and . _ -, and must not look like an id: "
            f"not {name!r:.80}",
            next_step="--name first-try",
        )
    return name


def parse_tags(flag: str, texts: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return the tags of ``KEY=VALUE`` texts, by their keys.

    Raises:
        UsageError: one is none, or a key stands twice.
    """
    found: dict[str, str] = {}
    for text in texts:
        made = _TAG.fullmatch(text)
        if made is None:
            raise UsageError(
                f"{flag} takes KEY=VALUE, not {text!r:.80}", next_step=f"{flag} team=a"
            )
        if made[1] in found:
            raise UsageError(f"{flag} {made[1]} is given twice", next_step="give it only once")
        found[made[1]] = made[2]
    if len(found) > _MOST_TAGS:
        raise UsageError(f"a run has at most {_MOST_TAGS} tags, not {len(found)}")
    return tuple(sorted(found.items()))


def has_tags(run: RunState, tags: Sequence[tuple[str, str]]) -> bool:
    """Whether the run has all of ``tags``."""
    return set(tags) <= set(run.tags)


def _digest(command: str, requests: Sequence[Any]) -> str:
    said: list[Any] = [command]
    for request in requests:
        values = {field.name: getattr(request, field.name) for field in dataclasses.fields(request)}
        said.append({name: value for name, value in values.items() if name not in _APART})
    text = json.dumps(said, sort_keys=True, default=_plain)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _plain(value: Any) -> Any:
    return value.plain() if isinstance(value, Usd) else str(value)


def find_earlier(context: Context, labels: Labels) -> RunState | None:
    """Return the run that was launched with the key before; None where this is the first time.

    Raises:
        UsageError: it was launched with other arguments.
        ConflictError: a live run has the name. RunQuarantined: damaged records may hold the key.
    """
    ledger = context.ledger.read()
    earlier = run_of_key(ledger, labels.key)
    if earlier is None:
        if labels.name:
            require_free_name(ledger, labels.name, context.caller.principal)
        return None
    if context.caller.principal and earlier.creator != context.caller.principal:
        raise UsageError(
            f"the idempotency key {labels.key!r:.60} is not {context.caller.principal}'s",
            next_step="use another key",
        )
    if earlier.keys[labels.key] != labels.request:
        raise UsageError(
            f"the idempotency key {labels.key!r:.60} belongs to {earlier.run_id}, which was "
            "launched with other arguments",
            next_step=f"use another key, or: trmcloud status {earlier.run_id}",
        )
    return earlier


def is_left_alone(context: Context, run: RunState) -> bool:
    """Whether a run that has not begun to train is driven by no process: its launch was killed."""
    from trmcloud.operations.launch.launching import has_begun  # it loads what drives a run

    run = run_by_id(context, run.run_id)
    return not has_begun(run) and not is_driven(context, context.ledger.driver(run.run_id))
