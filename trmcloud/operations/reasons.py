"""Sentences of reasons: one template a kind, facts in the units of their names."""

from __future__ import annotations

from collections.abc import Mapping

from trmcloud.core.control.events import BalanceLow
from trmcloud.core.control.reason import Fact, Reason, ReasonKind
from trmcloud.core.durations import duration
from trmcloud.core.money import Usd

_Kind = ReasonKind
SENTENCES: Mapping[ReasonKind, str] = {
    _Kind.SAID: "{text}",
    _Kind.AGENT_SAID: "{text}",
    _Kind.PROVIDER_SAID: "{text}",
    _Kind.LINK_FAILED: "{text}",
    _Kind.LIST_FAILED: "no list: {text}",
    _Kind.STOP_COMMAND: "a user requested the stop",
    _Kind.INTERRUPTED: "Ctrl-C",
    _Kind.STOP_NOW: "stopped at once, without saving",
    _Kind.BUDGET_CUT: "the {level} budget was cut to {cap_usd}",
    _Kind.ORPHANS_COST: "orphaned pods have cost {orphans_usd} of the {level} budget",
    _Kind.BUDGET_REFUSED: "{text}",
    _Kind.BALANCE_ENDS: (
        "the {provider} balance of {balance_usd} lasts {left_s} more at {spending_usd_per_hour}"
    ),
    _Kind.GRANT_REVOKED: "the grant of {principal} was revoked",
    _Kind.GRANT_REVOKED_NOW: "the grant of {principal} was revoked, to end at once",
    _Kind.IDLE: "it has made no step for {idle_s}; its limit is {limit_s}",
    _Kind.GPUS_IDLE: "its GPUs have computed nothing for {idle_s}; its limit is {limit_s}",
    _Kind.LAUNCH_KILLED: "its launch was killed before anything was rented",
    _Kind.NO_CANDIDATE: "the plan has no candidate",
    _Kind.NOT_ASKED_FOR: "stopped before a machine was requested",
    _Kind.NEVER_APPEARED: "it never appeared",
    _Kind.WAIT_OVER: (
        "waited {waited_s}; requests: {asked}; failed boots: {boots}, at most {spent_usd}"
    ),
    _Kind.BOOTS_SPENT: (
        "failed boots: {boots}, at most {spent_usd}; another one would exceed the boot budget of "
        "{budget_usd}"
    ),
    _Kind.HARD_STOP: "hard stop",
    _Kind.WORK_DONE: "training has finished",
    _Kind.SAVED_HERE: "training has finished, and its checkpoints are here",
    _Kind.NO_AGENT: "no agent within {boot_deadline_s}",
    _Kind.BOOT_FAILED: "its boot failed, according to the provider's log: {text}",
    _Kind.HOST_STOPPED: "its provider has stopped it, but still bills its disk",
    _Kind.STRANGER_ANSWERS: (
        "another machine answers at its address: the host key is not the run's"
    ),
    _Kind.DID_NOT_LAND: "it did not stop when asked to",
    _Kind.BILLED_ABOVE_RATE: "billed {billed_usd_per_hour}, planned {planned_usd_per_hour}",
    _Kind.MISPLACED: "it is in {region}, but {wanted_region} was requested",
    _Kind.WRONG_BOARD: "{planned} was rented, but its machine has {found}",
    _Kind.SLOWER_BOARD: (
        "{found} instead of {planned}: the new plan takes up to {time_ratio} times as long"
    ),
    _Kind.OTHER_BOARD: "{found} instead of {planned}",
    _Kind.SLOWER_THAN_PLANNED: (
        "slower than planned: {pace} per step, at most {limit} was planned; {more_s} and "
        "{more_usd} more than the plan's P50"
    ),
    _Kind.NO_LONGER_FITS: (
        "at {pace} per step {fit} of {steps} steps fit before the soft stop; all steps need "
        "{more_s} and {more_usd} more than planned"
    ),
    _Kind.FASTER_THAN_PEAK: "{pace} per step is faster than the GPUs' peak allows, {limit}",
    _Kind.SLOWER_THAN_TIME: "its steps would have taken {steps_s}, but only {passed_s} have passed",
    _Kind.OTHER_STEPS: "its steps have {tokens} tokens, the planned ones {planned_tokens}",
    _Kind.NO_MOVE_WITHOUT_BUCKET: "it cannot move: this needs --bucket with presigned requests",
    _Kind.NO_MOVE_OF_SUCH_A_RUN: (
        "it cannot move: only a run of known length on one rented machine can"
    ),
    _Kind.NAME_TWICE: "its run has another pod of this name",
    _Kind.OUTLIVED_HARD_STOP: "it still runs after its hard stop",
    _Kind.NO_OWNER: "no live run of this ledger owns it",
    _Kind.HARD_STOP_PASSED: "its hard stop has passed",
    _Kind.UNKNOWN_RESULT: "its agent ended with '{result}'",
    _Kind.REFUSED: "refused",
    _Kind.STOPPED_UNRENTED: "before anything was rented",
    _Kind.STOPPED_UNREPORTED: "ended before it reported",
    _Kind.KILLED_BEFORE_LANDING: "the hard stop came before the trainer had landed",
    _Kind.POD_ENDED: "the pod was ended",
    _Kind.ON_VOLUME: (
        "its checkpoints and its result are on its network volume: trmcloud fetch-best gets both"
    ),
    _Kind.IN_BUCKET: "it left no final report; its uploads are in {bucket}: trmcloud fetch-best",
    _Kind.ENDED_SILENT: "the pod ended without a report from its agent",
    _Kind.MACHINE_LOST: "the machine at {provider} was lost; training continues from the bucket",
    _Kind.NO_OTHER_MACHINE: "its machine was lost, and no other could be rented",
    _Kind.MOVING: "training was to move to a machine at {provider}",
    _Kind.MOVE_CALLED_OFF: "the run does not move: its machine is not needed any more",
    _Kind.MOVE_SAVES_TOO_LITTLE: "the move would no longer save enough",
    _Kind.HOLDS_UNTIL_IT_TRAINS: "it does not train yet",
    _Kind.TRAINS_TO_ITS_STOP: "it trains until its stop, and needs all its money",
    _Kind.STOP_CANNOT_BE_LOWERED: (
        "an earlier stop is not possible for a run that is stopping, moves, keeps a network volume "
        "or has several machines"
    ),
    _Kind.NO_LAYER_APART: (
        "only its own machine could enforce an earlier stop at {provider}: run trmcloud admin "
        "guard install on another machine that shares this home"
    ),
    _Kind.STOP_LOWERED: "its stop was set earlier to make room for another run",
    _Kind.NOT_READY_IN_TIME: "not ready to train within {within_s}",
    _Kind.AWAITS_AGENT: "the first report of its agent",
    _Kind.AWAITS_EARLIER_POD: "the end of an earlier pod of this run",
    _Kind.AWAITS_CAPACITY: "a free {hardware}; requests so far: {asked}",
    _Kind.AWAITS_LIST_TO_RENT: (
        "a list from {provider}: it must show first that no earlier pod is left"
    ),
    _Kind.AWAITS_LIST_TO_STOP: (
        "a list from {provider}: before the run can stop, it must show that no earlier pod is left"
    ),
    _Kind.AWAITS_LIST_OF_POD: "a list from {provider}, to find the requested pod",
    _Kind.AWAITS_POD: "{provider} to list the requested pod",
    _Kind.CREATE_UNANSWERED: "no answer was recorded",
    _Kind.CREATE_TAKEN: "the provider accepted the request",
    _Kind.NOT_FETCHED: "the checkpoints of {runs} were not fetched",
    _Kind.NOT_AGREED: "{runs} did not agree to its deletion",
}
FOLLOWS: Mapping[ReasonKind, str] = {
    _Kind.AWAITS_CAPACITY: "the launch ends with exit code 75",
    _Kind.AWAITS_AGENT: "the pod is ended",
    _Kind.AWAITS_POD: "it counts as not created",
}
"""The next step where a wait ends without what was waited for."""


def sentence(reason: Reason | None) -> str:
    """Return the reason as a sentence, which may quote a pod or a provider; empty for none."""
    if reason is None:
        return ""
    words = {name: fact_words(name, fact) for name, fact in reason.facts.items()}
    told = SENTENCES[reason.kind].format(**words)
    return f"{told}: {sentence(reason.more)}" if reason.more is not None else told


def low_balance(low: BalanceLow, now: float) -> str:
    """One line: what is left of a balance that is low, and when it ends."""
    left, age = (duration(max(0.0, s)) for s in (low.ends_at - now, now - low.read_at))
    return (
        f"the {low.provider} balance was {low.balance} {age} ago: it ends in {left} at "
        f"{low.spending}/h for the whole account; add credit"
    )


def fact_words(name: str, fact: Fact) -> str:
    """A fact as screens show what its name says that it is."""
    if name.endswith("_usd_per_hour"):
        return f"{Usd(str(fact))}/h"
    if name.endswith("_usd"):
        return str(Usd(str(fact)))
    if name.endswith("_s"):
        return duration(float(fact))
    return str(fact)
