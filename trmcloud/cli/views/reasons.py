"""Sentences of reasons, words of notifications, and lines of what could not be looked at."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trmcloud.app.context import Context, unreached_providers
from trmcloud.cli.views.text import bpb, duration
from trmcloud.core.contract.notices import Notice, NoticeKind
from trmcloud.core.control.observation import BY_POD, POD
from trmcloud.core.control.reason import MEANINGS, Fact, Reason, ReasonKind
from trmcloud.core.errors import Outcome, TrmcloudError
from trmcloud.core.money import Usd
from trmcloud.core.text import one_line

if TYPE_CHECKING:
    from trmcloud.app.reap import Did
    from trmcloud.core.control.events import BalanceLow
    from trmcloud.core.control.ledger_facts import Quarantine
    from trmcloud.core.control.run_state import RunState

_Kind = ReasonKind
SENTENCES: Mapping[ReasonKind, str] = {
    _Kind.SAID: "{text}",
    _Kind.AGENT_SAID: "{text}",
    _Kind.PROVIDER_SAID: "{text}",
    _Kind.LINK_FAILED: "{text}",
    _Kind.LIST_FAILED: "no list: {text}",
    _Kind.STOP_COMMAND: "a user requested the stop",
    _Kind.INTERRUPTED: "Ctrl-C",
    _Kind.STOP_NOW: "stopped at once, without landing",
    _Kind.BUDGET_CUT: "the {level} budget was cut to {cap_usd}",
    _Kind.ORPHANS_COST: "orphaned pods have cost {orphans_usd} of the {level} budget",
    _Kind.BUDGET_REFUSED: "{text}",
    _Kind.BALANCE_ENDS: (
        "the {provider} balance of {balance_usd} lasts {left_s} more at {spending_usd_per_hour}"
    ),
    _Kind.LAUNCH_KILLED: "its launch was killed before anything was rented",
    _Kind.NO_CANDIDATE: "the plan has no candidate",
    _Kind.NOT_ASKED_FOR: "stopped before it was asked for",
    _Kind.NEVER_APPEARED: "it never appeared",
    _Kind.WAIT_OVER: (
        "waited {waited_s}; requests: {asked}; failed boots: {boots}, {spent_usd} at most"
    ),
    _Kind.BOOTS_SPENT: (
        "failed boots: {boots}, {spent_usd} at most; another one would exceed the boot budget of"
        " {budget_usd}"
    ),
    _Kind.HARD_STOP: "hard stop",
    _Kind.WORK_DONE: "its work is done",
    _Kind.SAVED_HERE: "its work is done, and its checkpoints are here",
    _Kind.NO_AGENT: "no agent within {boot_deadline_s}",
    _Kind.BOOT_FAILED: "its boot failed, by the provider's log: {text}",
    _Kind.HOST_STOPPED: "its provider has stopped it, and bills its disk on",
    _Kind.STRANGER_ANSWERS: (
        "another machine answers at its address: the host key is not the run's"
    ),
    _Kind.DID_NOT_LAND: "it did not land when told to",
    _Kind.BILLED_ABOVE_RATE: "billed {billed_usd_per_hour}, planned {planned_usd_per_hour}",
    _Kind.MISPLACED: "it stands in {region}, and {wanted_region} was asked for",
    _Kind.WRONG_BOARD: "{planned} was rented, and its machine has {found}",
    _Kind.SLOWER_BOARD: (
        "{found} in place of {planned}: planned again, it takes up to {time_ratio} times as long"
    ),
    _Kind.OTHER_BOARD: "{found} in place of {planned}",
    _Kind.SLOWER_THAN_PLANNED: (
        "slower than planned: {pace} a step, and {limit} at most was planned; {more_s} and"
        " {more_usd} more than the plan's P50"
    ),
    _Kind.NO_LONGER_FITS: (
        "at {pace} a step {fit} of {steps} steps fit before the soft stop; all of them would take"
        " {more_s} and {more_usd} more than planned"
    ),
    _Kind.FASTER_THAN_PEAK: "{pace} a step is less than the GPUs' peak allows, {limit}",
    _Kind.SLOWER_THAN_TIME: "its steps would have taken {steps_s}, and {passed_s} have passed here",
    _Kind.OTHER_STEPS: "its steps are of {tokens} tokens, the planned ones of {planned_tokens}",
    _Kind.NO_MOVE_WITHOUT_BUCKET: "it does not move: that needs --bucket with presigned requests",
    _Kind.NO_MOVE_OF_SUCH_A_RUN: (
        "it does not move: only a run of known length on one rented machine does"
    ),
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
    _Kind.MACHINE_LOST: "the machine at {provider} was lost; training continues from the bucket",
    _Kind.NO_OTHER_MACHINE: "its machine was lost, and no other could be rented",
    _Kind.MOVING: "training moves to a machine at {provider}",
    _Kind.MOVE_CALLED_OFF: "the run does not move: its machine is not needed any more",
    _Kind.MOVE_SAVES_TOO_LITTLE: "to move there would not save enough any more",
    _Kind.HOLDS_UNTIL_IT_TRAINS: "it does not train yet",
    _Kind.TRAINS_TO_ITS_STOP: "it trains until its stop: all its money is planned for",
    _Kind.STOP_CANNOT_BE_LOWERED: (
        "the stop of a run that lands, moves, keeps a network volume or has several machines is not"
        " lowered"
    ),
    _Kind.NO_LAYER_APART: (
        "nothing apart from its machine is seen to enforce an earlier stop at {provider}:"
        " trmcloud guard install, on another machine that shares this home"
    ),
    _Kind.STOP_LOWERED: "its stop was lowered to make room for another run",
    _Kind.NOT_READY_IN_TIME: "not ready to train within {within_s}",
    _Kind.AWAITS_AGENT: "the first word of its agent",
    _Kind.AWAITS_EARLIER_POD: "an earlier pod of this run to be gone: it is ended first",
    _Kind.AWAITS_CAPACITY: "a free {hardware}; requests so far: {asked}",
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
    _Kind.AWAITS_CAPACITY: "it ends with exit code 75",
    _Kind.AWAITS_AGENT: "the pod is ended",
    _Kind.AWAITS_POD: "it counts as never made",
}
"""The next step where a wait ends without what was waited for."""


def sentence(reason: Reason | None) -> str:
    """Return the reason as a sentence, which may quote a pod or a provider; empty for none."""
    if reason is None:
        return ""
    words = {name: _words(name, fact) for name, fact in reason.facts.items()}
    told = SENTENCES[reason.kind].format(**words)
    return f"{told}: {sentence(reason.more)}" if reason.more is not None else told


def low_balance(low: BalanceLow, now: float) -> str:
    """One line: what is left of a balance that is low, and when it ends."""
    left, age = (duration(max(0.0, s)) for s in (low.ends_at - now, now - low.read_at))
    return (
        f"the {low.provider} balance was {low.balance} {age} ago: "
        f"it ends in {left} at {low.spending}/h, all that the account rents; add credit"
    )


def did_line(did: Did) -> str:
    """Return one line about what was found and done."""
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


_WHAT = {
    "out_of_memory": "ran out of memory",
    "non_finite": "its loss or gradients were not finite",
    "diverged": "its loss rose and stayed up",
    "crashed": "its trainer crashed",
    "lost": "a process of its trainer was lost, or stood still",
    "unsound": "left steps out, not finite or far above those before",
    "unfit": "a machine was not what was rented, and is given back",
}


def words_of(notice: Notice) -> Mapping[str, str]:
    """``title`` and ``text`` of a notice; whatever a pod said is one line of plain text."""
    title, text = _title_and_text(notice)
    return {"title": one_line(title)[:120], "text": one_line(text)[:600]}


def _title_and_text(notice: Notice) -> tuple[str, str]:
    run = notice.run_id
    facts: Mapping[str, Any] = notice.facts
    by = f" {BY_POD}" if facts.get("reported_by") == POD else ""
    status = f"trmcloud status {run}"
    match notice.kind:
        case NoticeKind.STARTED:
            return f"{run} has started", f"{facts['phase']} is trained{by}. {status}"
        case NoticeKind.GATE:
            told = "passed" if facts["passed"] else "FAILED"
            text = f"The gate after {facts['phase']} {told}{by}. trmcloud gate {run}"
            return f"{run}: gate {told}", text
        case NoticeKind.CAP:
            name = f"{facts['level']} {facts['key']}".strip()
            text = f"{_spent(facts)} by our clock. trmcloud budget show"
            return f"{facts['percent']} % of the {name} cap is spent", text
        case NoticeKind.ENDED:
            outcome = str(facts["outcome"])
            known = {each.value: MEANINGS.get(each, "") for each in Outcome}
            words = [known[outcome]] if known.get(outcome) else []
            if "spent_usd" in facts:
                words.append(f"{_spent(facts)} by our clock")
            if "step" in facts:
                metric = bpb(facts.get("val_bpb"))
                words.append(f"{facts['phase']} step {facts['step']:,}, bpb {metric}{by}")
            return f"{run}: {outcome}", f"{'; '.join(words)}. {status}"
        case NoticeKind.TROUBLE:
            what = str(facts["what"])
            where = f"{facts['phase']} step {facts['step']:,}: " if "phase" in facts else ""
            short = what.replace("_", " ")
            told = f"{where}{_WHAT.get(what, short)}"
            if not facts["mended"]:
                return f"{run}: {short}", f"{told}{by}. {status}"
            now = f"now with {facts['changed']}" if facts["changed"] else "from its last checkpoint"
            lost = f"{facts['lost_steps']:,} steps and {duration(facts['lost_s'])} lost"
            return f"{run}: mended, {short}", f"{told}; goes on {now}, {lost}{by}. {status}"
        case NoticeKind.LOST:
            text = f"{facts['pod']} at {facts['provider']} ended without a word; {_spent(facts)}"
            if "continues_at" in facts:
                told = f"{facts['hardware']} at {facts['continues_at']}"
                text = f"{text} by our clock. It continues on {told}. {status}"
                return f"{run}: its pod is lost, and it continues", text
            return f"{run}: its pod is lost", f"{text} by our clock. trmcloud resume {run}"
        case NoticeKind.PRICE:
            planned, billed = (Usd(facts[f"{x}_usd_per_hour"]) for x in ("planned", "billed"))
            now = f" with {facts['hardware']}" if "hardware" in facts else ""
            text = f"{billed}/h{now}, planned at {planned}/h; the cap stays. {status}"
            return f"{run}: its price changed", text
        case NoticeKind.ORPHAN:
            text = f"{facts['pod']} at {facts['provider']} is no run's, and may have cost "
            text += f"{Usd(facts['at_most_usd'])}; it is ended. trmcloud reap --yes"
            return "an orphaned pod was found", text
        case NoticeKind.REAPER:
            text = f"It should come by every {duration(facts['every_s'])}, and last did "
            text += f"{duration(facts['silent_s'])} ago, while something is rented. "
            return f"the reaper on {facts['machine']} is silent", f"{text}trmcloud guard status"
        case NoticeKind.BALANCE:
            left, spent = Usd(facts["balance_usd"]), Usd(facts["spending_usd_per_hour"])
            text = f"{left} are left, and all that the account rents takes {spent}/h: it ends in "
            text += f"{duration(facts['left_s'])}. Add credit. trmcloud status"
            title = f"the {facts['provider']} balance lasts less than {facts['hours']} hours"
            return title, text
        case NoticeKind.TEST:
            return "trmcloud: a test", "If you read this, it works. trmcloud notify list"


def _spent(facts: Mapping[str, Any]) -> str:
    return f"{Usd(facts['spent_usd'])} of {Usd(facts['cap_usd'])}"


def trouble_lines(context: Context) -> list[str]:
    """A line for each run that could not be brought up to date by the last ``reconcile``."""
    lines = []
    for run_id, error in context.troubles.items():
        known = isinstance(error, TrmcloudError)
        what = str(error) if known else f"unexpected {type(error).__name__}: {error}"
        lines.append(one_line(f"{run_id} could not be brought up to date: {what}"))
    return lines


def unreached_lines(context: Context) -> list[str]:
    """A line for each provider that gave no list: what it rents to us continues, unseen."""
    return [
        one_line(f"{provider} was not looked at: {why}")
        for provider, why in unreached_providers(context)
    ]


def tell_unreached(context: Context) -> None:
    for line in unreached_lines(context):
        print(line, file=sys.stderr, flush=True)


def tell_troubles(context: Context) -> None:
    for line in trouble_lines(context):
        print(line, file=sys.stderr, flush=True)


def trouble_code(context: Context, run_id: str = "") -> int:
    """The exit code of a command that looks at all runs, or at the one that is named: 0 where each
    was brought up to date."""
    troubles = [e for name, e in context.troubles.items() if run_id in ("", name)]
    return max((int(getattr(error, "exit_code", 1)) for error in troubles), default=0)


def hurt_line(hurt: Quarantine) -> str:
    """A run in quarantine: what is known, what it counts as, what to type next."""
    if hurt.settled is not None:
        return f"{hurt.run_id}: {hurt.words}; settled by hand at {hurt.settled}"
    most = "an amount that is not known" if hurt.most is None else f"{hurt.most} at most"
    return f"{hurt.run_id}: {hurt.words}; it counts as {most} · trmcloud ledger restore"


def failure_lines(context: Context, run: RunState) -> list[str]:
    """Return the last lines of a command that failed, and a file that it did not find though it is
    here; none of any other run."""
    from trmcloud.app.failed_commands import failure_of  # only such runs need it

    failure = failure_of(context, run) if run.spec.command is not None else None
    if failure is None:
        return []
    lines = ["  its last lines:", *(f"  | {line}" for line in failure.lines)]
    told = lines if failure.lines else []
    if failure.missing:
        told.append(f"  missing: {one_line(failure.missing)} is here and was not sent")
        told.append(f"  try: {one_line(failure.fix)}")
    return told
