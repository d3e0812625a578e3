"""The sentence of each reason: the one place where they are written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trmcloud.cli.views.text import duration
from trmcloud.core.control.reason import Fact, Reason, ReasonKind
from trmcloud.core.money import Usd

if TYPE_CHECKING:
    from trmcloud.app.reap import Did

_Kind = ReasonKind
SENTENCES: Mapping[ReasonKind, str] = {
    _Kind.SAID: "{text}",
    _Kind.AGENT_SAID: "{text}",
    _Kind.PROVIDER_SAID: "{text}",
    _Kind.LINK_FAILED: "{text}",
    _Kind.LIST_FAILED: "no list: {text}",
    _Kind.STOP_COMMAND: "trmcloud stop",
    _Kind.INTERRUPTED: "Ctrl-C",
    _Kind.STOP_NOW: "stopped at once, without landing",
    _Kind.BUDGET_CUT: "the {level} budget was cut to {cap_usd}",
    _Kind.ORPHANS_COST: "orphaned pods have cost {orphans_usd} of the {level} budget",
    _Kind.BUDGET_REFUSED: "{text}",
    _Kind.LAUNCH_KILLED: "its launch was killed before anything was rented",
    _Kind.NO_CANDIDATE: "the plan has no candidate",
    _Kind.NOT_ASKED_FOR: "stopped before it was asked for",
    _Kind.NEVER_APPEARED: "it never appeared",
    _Kind.HARD_STOP: "hard stop",
    _Kind.WORK_DONE: "its work is done",
    _Kind.SAVED_HERE: "its work is done, and its checkpoints are here",
    _Kind.NO_AGENT: "no agent within {boot_deadline_s}",
    _Kind.BOOT_FAILED: "its boot failed, by the provider's log: {text}",
    _Kind.STRANGER_ANSWERS: (
        "another machine answers at its address: the host key is not the run's"
    ),
    _Kind.DID_NOT_LAND: "it did not land when told to",
    _Kind.BILLED_ABOVE_RATE: "billed {billed_usd_per_hour}, planned {planned_usd_per_hour}",
    _Kind.MISPLACED: "it stands in {region}, and {wanted_region} was asked for",
    _Kind.NAME_TWICE: "its run has another pod of this name",
    _Kind.OUTLIVED_HARD_STOP: "it has outlived its hard stop",
    _Kind.NO_OWNER: "no live run of this ledger owns it",
    _Kind.HARD_STOP_PASSED: "its hard stop has passed",
    _Kind.UNKNOWN_RESULT: "its agent ended with '{result}'",
    _Kind.REFUSED: "refused",
    _Kind.STOPPED_UNRENTED: "before anything was rented",
    _Kind.STOPPED_UNREPORTED: "ended before it reported",
    _Kind.KILLED_BEFORE_LANDING: "the hard stop came before the trainer had landed",
    _Kind.POD_ENDED: "the pod was ended",
    _Kind.ON_VOLUME: (
        "what it saved, and how it ended, is on its network volume: fetch-best brings both"
    ),
    _Kind.IN_BUCKET: "no last word of it was found; its uploads are in {bucket}: fetch-best",
    _Kind.ENDED_SILENT: "the pod ended without a word from its agent",
    _Kind.AWAITS_AGENT: "the first word of its agent",
    _Kind.AWAITS_EARLIER_POD: "an earlier pod of this run to be gone: it is ended first",
    _Kind.AWAITS_LIST_TO_RENT: (
        "{provider}'s list: nothing is rented before it shows that no earlier pod is left"
    ),
    _Kind.AWAITS_LIST_TO_STOP: (
        "{provider}'s list: the run is not stopped before it shows that no earlier pod is left"
    ),
    _Kind.AWAITS_LIST_OF_POD: "{provider}'s list, to find the pod that was asked for",
    _Kind.AWAITS_POD: "{provider} to list the pod that was asked for",
    _Kind.CREATE_UNANSWERED: "the answer is not on record",
    _Kind.CREATE_TAKEN: "it took the request",
    _Kind.NOT_FETCHED: "what {runs} saved was not fetched",
    _Kind.NOT_AGREED: "{runs} did not agree to its end",
}
FOLLOWS: Mapping[ReasonKind, str] = {
    _Kind.AWAITS_AGENT: "the pod is ended",
    _Kind.AWAITS_POD: "it counts as never made",
}
"""What comes next where a wait ends without what was waited for."""


def sentence(reason: Reason | None) -> str:
    """The reason in words, which may be somebody else's; empty for none."""
    if reason is None:
        return ""
    words = {name: _words(name, fact) for name, fact in reason.facts.items()}
    told = SENTENCES[reason.kind].format(**words)
    return f"{told}: {sentence(reason.more)}" if reason.more is not None else told


def reason_json(reason: Reason | None) -> dict[str, Any]:
    """The sentence, and beside it what a program asks for: its kind and its facts."""
    return {
        "reason": sentence(reason),
        "reason_kind": reason.kind.value if reason is not None else None,
        "reason_facts": dict(reason.facts) if reason is not None else {},
    }


def did_line(did: Did) -> str:
    """What was found and done, in a line."""
    if isinstance(did, str):
        return did
    return f"ended {did.orphan.pod.name} on {did.provider}: {sentence(did.orphan.reason)}"


def _words(name: str, fact: Fact) -> str:
    """A fact as screens show what its name says that it is."""
    if name.endswith("_usd_per_hour"):
        return f"{Usd(str(fact))}/h"
    if name.endswith("_usd"):
        return str(Usd(str(fact)))
    if name.endswith("_s"):
        return duration(float(fact))
    return str(fact)
