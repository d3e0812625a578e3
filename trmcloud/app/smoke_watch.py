"""Watching one pod from outside: whether it stands in the provider's lists, and what it wrote."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from trmcloud.app.world import World
from trmcloud.core.actions import TERMINATE
from trmcloud.core.errors import ProviderError
from trmcloud.core.events import ActionFinished, ActionStarted
from trmcloud.core.pod_contract import strip_control
from trmcloud.core.run_state import Generation
from trmcloud.ports.compute import CrossListing

_LISTS = 3
_LIST_EVERY_S = 2.1
"""Lists in a row that must lack the pod, and how far apart: one list serves all who ask within
two seconds."""
_PAUSE_S = 0.3
_MAX_WAY, _MOST_WAYS = 60, 8


class PodWatch:
    """The pod of ``generation``, by name and id."""

    def __init__(self, world: World, generation: Generation) -> None:
        self._world, self._pod_id = world, generation.pod_id
        self._provider = generation.provider
        self.name, self.hard_stop_at = generation.pod_name, generation.hard_stop_at

    def status(self) -> str:
        """As the provider's list says now, in our words; "" where it is missing or unreadable."""
        try:
            pods = self._world.computes[self._provider].list_pods()
        except ProviderError:
            return ""
        return next((pod.status for pod in pods if pod.pod_id == self._pod_id), "")

    def await_gone(self, until: float, meanwhile: Callable[[], object]) -> float | None:
        """When the pod was first missed, once several lists in a row, and any second list that
        the provider has, lack it; None where it is still there at ``until`` (epoch s).

        ``meanwhile`` is called again and again.
        """
        missed_at: float | None = None
        missed = 0
        looked_at = 0.0
        while True:
            meanwhile()
            now = self._world.wall()
            if now - looked_at >= _LIST_EVERY_S:
                looked_at = now
                listed = self._listed()
                if listed:
                    missed_at, missed = None, 0
                elif listed is False:
                    missed_at, missed = missed_at or now, missed + 1
                proven = missed >= _LISTS and not self._cross_listed()
                if proven:
                    return missed_at
                if now >= until and (not missed or missed >= _LISTS):
                    return None
            self._world.clock.sleep(_PAUSE_S)

    def _listed(self) -> bool | None:
        """None where there is no list."""
        try:
            pods = self._world.computes[self._provider].list_pods()
        except ProviderError:
            return None
        return any(pod.pod_id == self._pod_id and pod.status != "gone" for pod in pods)

    def _cross_listed(self) -> bool:
        compute = self._world.computes[self._provider]
        if not isinstance(compute, CrossListing):
            return False
        try:
            pods = compute.cross_listed()
        except ProviderError:
            return False
        return any(pod.pod_id == self._pod_id and pod.status != "gone" for pod in pods)


def why_ended(world: World, run_id: str) -> str:
    """Why the controller told the run's pod to end; "" where it did not."""
    told = ""
    for record in world.ledger.records(run_id):
        event = record.event
        if isinstance(event, ActionStarted) and event.verb == TERMINATE:
            told = told or "by the controller"
        if isinstance(event, ActionFinished) and event.verb == TERMINATE:
            told = event.detail or told
    return told


def terminated_at(world: World, run_id: str) -> float | None:
    """When the controller first told the run's pod to end (epoch s)."""
    for record in world.ledger.records(run_id):
        if isinstance(record.event, ActionStarted) and record.event.verb == TERMINATE:
            return record.at
    return None


def last_way(text: str) -> tuple[str, str]:
    """Of a pod's own record of its end: the way it tried last, and those before it with what they
    came to. Both empty where it cannot be understood: the pod may be anybody's."""
    try:
        rows = json.loads(text)["attempts"]
        attempts = [(_word(row["way"]), row.get("ok"), row.get("code")) for row in rows]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return "", ""
    if not attempts:
        return "", ""
    # Rounds repeat: what each way came to the first time says enough.
    before: dict[str, str] = {}
    last, answered, _ = attempts[-1]
    refused = answered is False  # what it tried next was not read any more
    for way, ok, code in attempts if refused else attempts[:-1]:
        before.setdefault(way, f"{way} {_outcome(ok, code)}")
    return f"what came after {last}" if refused else last, ", ".join(
        list(before.values())[:_MOST_WAYS]
    )


def _word(value: Any) -> str:
    return strip_control(str(value)).replace("\n", " ")[:_MAX_WAY]


def _outcome(ok: Any, code: Any) -> str:
    said = "accepted" if ok is True else "refused"
    return f"{said} ({code})" if isinstance(code, int) else said
