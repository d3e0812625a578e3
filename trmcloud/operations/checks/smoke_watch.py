"""A smoke run's inputs and messages, and watching its pod from outside."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from trmcloud.core.catalog.offers import Offer
from trmcloud.core.catalog.providers import direct
from trmcloud.core.control.actions import TERMINATE
from trmcloud.core.control.balance import AccountBalance
from trmcloud.core.control.events import ActionFinished, ActionStarted
from trmcloud.core.control.observation import PodSeen, PodStatus
from trmcloud.core.control.reason import Reason
from trmcloud.core.control.run_state import Generation
from trmcloud.core.errors import ProviderError, TrmcloudError
from trmcloud.core.money import Usd
from trmcloud.core.text import strip_control
from trmcloud.core.values import Value
from trmcloud.operations.context import Context

# What a smoke run asks beyond the ports, and what it tells.


class RoundTrip(Value):
    """A file that went to the pod and came back, every byte the same."""

    size_bytes: int
    sent_s: float
    fetched_s: float


class MadeLimit(Value):
    """A limit of the provider's own that a pod is made with. ``layer`` is its name in the traits;
    ``ahead`` has the next pods end by it so many seconds before their hard stop, or behind it where
    that is negative; ``how`` gives the provider's words of that limit for a pod that is gone ('':
    something else ended it)."""

    layer: str
    ahead: Callable[[float], None]
    how: Callable[[str], str]


class SmokeSetting(Value):
    """The interface of a smoke run beyond the ports.

    ``offers`` is what can be had now, ``disk_rate`` the USD/h of the pod's own disks. ``answers``
    says why a pod's SSH server does not let us in ("" where it does); ``termination`` is the text
    of its record of how it tries to end itself ("" where that cannot be read).
    """

    provider: str
    account: Callable[[], AccountBalance]
    offers: Callable[[float], Sequence[Offer]]
    disk_rate: Usd
    answers: Callable[[str], str]
    round_trip: Callable[[str, int], RoundTrip]
    termination: Callable[[str], str]
    limit: Callable[[str, float], None] | None = None
    """Sets the provider's own limit on a pod so that it ends it by then (epoch s) at the latest;
    None where there is none that can be set."""
    cut: Callable[[], None] | None = None
    """Stops whatever on this machine is in touch with the provider; the next question starts it
    again. None where nothing is."""
    made_limit: MadeLimit | None = None
    """The provider's own limit, where a pod is made with it; None where there is none."""
    on_machine: str = ""
    """Which credential of the account will be on the pod."""


def offers_for_errand(
    setting_at: Callable[[str], SmokeSetting], now: float
) -> tuple[Sequence[Offer], Usd]:
    """Return the offers that can be rented now for minutes, and the USD/h of such a pod's own
    disks: those of a smoke run at the first provider."""
    setting = setting_at(direct()[0])
    return setting.offers(now), setting.disk_rate


class Step(Value):
    """One thing that was tried: ``at_s`` since the beginning, ``spent`` by our clock."""

    name: str
    good: bool | None
    """None: neither proven nor refuted."""
    detail: str
    at_s: float
    spent: Usd


class Verdict(Value):
    """``verified`` are kill layers now on record; ``trouble`` is what a user must act on."""

    verified: tuple[str, ...]
    trouble: TrmcloudError | None


# Watching one pod from outside: whether it stands in the provider's lists, and what it wrote.

_LISTS = 3
_LIST_EVERY_S = 2.1
"""Lists in a row that must lack the pod, and how far apart: one list serves all who ask within
two seconds."""
_PAUSE_S = 0.3
_MAX_WAY, _MOST_WAYS = 60, 8
_MOST_CODE = 1 << 31
"""Of an HTTP status or an exit code: what is larger is none."""


class PodWatch:
    """The pod of ``generation``, by name and id."""

    def __init__(self, context: Context, generation: Generation) -> None:
        self._context, self._pod_id = context, generation.pod_id
        self._provider = generation.provider
        self.name, self.hard_stop_at = generation.pod_name, generation.hard_stop_at

    def status(self) -> PodStatus | None:
        """As the provider's list says now; None where it is missing or unreadable."""
        return next((pod.status for pod in self._list() or ()), None)

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
            now = self._context.wall()
            if now - looked_at >= _LIST_EVERY_S:
                looked_at = now
                listed = self.listed()
                if listed:
                    missed_at, missed = None, 0
                elif listed is False:
                    missed_at, missed = missed_at or now, missed + 1
                proven = missed >= _LISTS and not self._cross_listed()
                if proven:
                    return missed_at
                if now >= until and (not missed or missed >= _LISTS):
                    return None
            self._context.clock.sleep(_PAUSE_S)

    def listed(self) -> bool | None:
        """Return whether the provider's list has it now; None where there is no list."""
        pods = self._list()
        return None if pods is None else any(not pod.gone for pod in pods)

    def _list(self) -> list[PodSeen] | None:
        """The pods of its id in the provider's list; None where there is no list."""
        try:
            pods = self._context.machines.computes[self._provider].list_pods()
        except ProviderError:
            return None
        return [pod for pod in pods if pod.pod_id == self._pod_id]

    def _cross_listed(self) -> bool:
        compute = self._context.machines.computes[self._provider]
        try:
            pods = compute.cross_listed()
        except ProviderError:
            return False
        return any(pod.pod_id == self._pod_id and not pod.gone for pod in pods)


def why_ended(context: Context, run_id: str) -> Reason | None:
    """Why the controller told the run's pod to end; None where it did not, or has no answer yet."""
    why = None
    for record in context.ledger.records(run_id):
        event = record.event
        if isinstance(event, ActionFinished) and event.verb == TERMINATE:
            why = event.reason or why
    return why


def terminated_at(context: Context, run_id: str) -> float | None:
    """When the controller first told the run's pod to end (epoch s)."""
    for record in context.ledger.records(run_id):
        if isinstance(record.event, ActionStarted) and record.event.verb == TERMINATE:
            return record.at
    return None


def last_way(text: str) -> tuple[str, str]:
    """Of a pod's own record of its end: the way it tried last, and those before it with what they
    came to. Both empty where it cannot be understood: the pod may be hostile."""
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
    return f"the events after {last}" if refused else last, ", ".join(
        list(before.values())[:_MOST_WAYS]
    )


def _word(value: Any) -> str:
    return strip_control(str(value)).replace("\n", " ")[:_MAX_WAY]


def _outcome(ok: Any, code: Any) -> str:
    said = "accepted" if ok is True else "refused"
    known = type(code) is int and abs(code) < _MOST_CODE
    return f"{said} ({code})" if known else said
