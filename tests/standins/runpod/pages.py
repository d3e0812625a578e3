"""REST v2: the list of pods, cut into pages.

Newest first. A cursor stands for the last pod of its page, so that pods which come or go meanwhile
move nobody. Members of clusters are taken out after the cut: a page may be short, or empty, and the
list goes on all the same.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import Any

from tests.standins.runpod.http_types import problem, reply
from tests.standins.runpod.knobs import Knobs
from tests.standins.runpod.pods import Pod
from tests.standins.web import Answer, Asked

MOST = 1000
_MARK = "pods"


def page(
    asked: Asked, pods: Sequence[Pod], knobs: Knobs, shown: Callable[[Pod], dict[str, Any]]
) -> Answer:
    """One page of ``pods``, or the 422 that the question earns."""
    query = asked.query
    wrong = []
    text = query.get("limit", str(MOST))
    if not text.isdecimal() or not 1 <= int(text) <= MOST:
        wrong.append(f"limit: must be an integer from 1 to {MOST}")
    members = query.get("includeClusterPods", "false")
    if members not in ("true", "false"):
        wrong.append("includeClusterPods: must be a boolean")
    after = _read(query["cursor"]) if "cursor" in query else None
    if "cursor" in query and after is None:
        wrong.append("cursor: malformed")
    if wrong:
        return problem(422, "Request validation failed.", wrong)
    if knobs.list_endless:
        return _answer([], cursor(float(after[0] if after else 0) + 1.0, "endless"))
    if knobs.list_circle:
        return _answer([], cursor(1.0, "circle"))
    ordered = sorted(pods, key=_place, reverse=True)
    left = [pod for pod in ordered if after is None or _place(pod) < after]
    size = min(int(text), knobs.list_page or MOST)
    cut = left[:size]
    following = cursor(*_place(cut[-1])) if len(left) > size else None
    hidden = () if members == "true" else knobs.cluster_members
    return _answer([shown(pod) for pod in cut if pod.name not in hidden], following)


def volume_page(asked: Asked, volumes: Sequence[dict[str, Any]], size: int) -> Answer:
    """One page of network volumes as they are shown; its cursor is the last one's id."""
    after = _read(asked.query["cursor"]) if "cursor" in asked.query else (0.0, "")
    if after is None:
        return problem(422, "Request validation failed.", ["cursor: malformed"])
    left = sorted((each for each in volumes if each["id"] > after[1]), key=lambda each: each["id"])
    cut = left[: size or MOST]
    following = cursor(0.0, cut[-1]["id"]) if len(left) > len(cut) else None
    pagination = {"nextCursor": following, "hasNextPage": following is not None}
    return reply({"networkVolumes": cut, "pagination": pagination})


def cursor(created_at: float, pod_id: str) -> str:
    return base64.urlsafe_b64encode(f"{_MARK}={created_at!r}/{pod_id}".encode()).decode()


def _place(pod: Pod) -> tuple[float, str]:
    return pod.created_at, pod.id


def _read(text: str) -> tuple[float, str] | None:
    """What a cursor stands for; None where it is none of this collection's."""
    try:
        mark, _, place = base64.urlsafe_b64decode(text.encode()).decode().partition("=")
        created_at, _, pod_id = place.partition("/")
        return (float(created_at), pod_id) if mark == _MARK and pod_id else None
    except (ValueError, binascii.Error):
        return None


def _answer(pods: list[dict[str, Any]], following: str | None) -> Answer:
    pagination = {"nextCursor": following, "hasNextPage": following is not None}
    return reply({"pods": pods, "pagination": pagination})
