"""Sentences of reasons, words of notifications, and lines of what could not be looked at."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trmcloud.app.context import Context, unreached_providers
from trmcloud.cli.views.text import bpb, duration
from trmcloud.core.contract.notices import Notice, NoticeKind
from trmcloud.core.control.observation import BY_POD, POD
from trmcloud.core.control.reason import MEANINGS, OF_KINDS, Fact, Reason, ReasonKind
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
    _Kind.MOVING: "training moves to a machine at {provider}",
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
    words = {name: _words(name, fact) for name, fact in reason.facts.items()}
    told = SENTENCES[reason.kind].format(**words)
    return f"{told}: {sentence(reason.more)}" if reason.more is not None else told


def low_balance(low: BalanceLow, now: float) -> str:
    """One line: what is left of a balance that is low, and when it ends."""
    left, age = (duration(max(0.0, s)) for s in (low.ends_at - now, now - low.read_at))
    return (
        f"the {low.provider} balance was {low.balance} {age} ago: it ends in {left} at "
        f"{low.spending}/h for the whole account; add credit"
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
    "diverged": "its loss rose and did not fall again",
    "crashed": "its trainer crashed",
    "lost": "a process of its trainer was lost, or made no progress",
    "unsound": "skipped steps whose loss was not finite or far too high",
    "unfit": "a machine was not as rented, and is returned",
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
            return f"{run} has started", f"{facts['phase']} training{by}. {status}"
        case NoticeKind.GATE:
            told = "passed" if facts["passed"] else "FAILED"
            text = f"The gate after {facts['phase']} {told}{by}. trmcloud status {run}"
            return f"{run}: gate {told}", text
        case NoticeKind.CAP:
            name = f"{facts['level']} {facts['key']}".strip()
            text = f"{_spent(facts)} accrued. trmcloud budget show"
            return f"{facts['percent']} % of the {name} cap is spent", text
        case NoticeKind.ENDED:
            outcome = str(facts["outcome"])
            of_kind = OF_KINDS.get(str(facts.get("kind", "")), {})
            known = {each.value: of_kind.get(each) or MEANINGS.get(each, "") for each in Outcome}
            words = [known[outcome]] if known.get(outcome) else []
            if "spent_usd" in facts:
                words.append(f"{_spent(facts)} accrued")
            if "step" in facts:
                metric = f"bpb {bpb(facts.get('val_bpb'))}"
                if "val_bpb" not in facts and "value" in facts:
                    metric = f"{one_line(str(facts['metric']))[:40]} {facts['value']:.4g}"
                words.append(f"{facts['phase']} step {facts['step']:,}, {metric}{by}")
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
            return f"{run}: recovered, {short}", f"{told}; continues {now}, {lost}{by}. {status}"
        case NoticeKind.LOST:
            text = f"{facts['pod']} at {facts['provider']} ended without a report; {_spent(facts)}"
            if "continues_at" in facts:
                told = f"{facts['hardware']} at {facts['continues_at']}"
                text = f"{text} accrued. It continues on {told}. {status}"
                return f"{run}: its pod is lost, the run continues", text
            return f"{run}: its pod is lost", f"{text} accrued. trmcloud resume {run}"
        case NoticeKind.PRICE:
            planned, billed = (Usd(facts[f"{x}_usd_per_hour"]) for x in ("planned", "billed"))
            now = f" with {facts['hardware']}" if "hardware" in facts else ""
            text = f"{billed}/h{now}, planned at {planned}/h; the cap stays. {status}"
            return f"{run}: its price changed", text
        case NoticeKind.ORPHAN:
            text = f"{facts['pod']} at {facts['provider']} belongs to no run, and may have cost "
            text += f"{Usd(facts['at_most_usd'])}; it is being ended. trmcloud admin reap --yes"
            return "an orphaned pod was found", text
        case NoticeKind.REAPER:
            text = f"It should run every {duration(facts['every_s'])}, but last ran "
            text += f"{duration(facts['silent_s'])} ago, while machines are rented. "
            return (
                f"the reaper on {facts['machine']} is silent",
                f"{text}trmcloud admin guard status",
            )
        case NoticeKind.BALANCE:
            left, spent = Usd(facts["balance_usd"]), Usd(facts["spending_usd_per_hour"])
            text = f"{left} are left, and the account spends {spent}/h: it ends in "
            text += f"{duration(facts['left_s'])}. Add credit. trmcloud status"
            title = f"the {facts['provider']} balance lasts less than {facts['hours']} hours"
            return title, text
        case NoticeKind.APPROVAL:
            asked = [f"{Usd(facts['more_usd'])} more"] if Usd(facts["more_usd"]) else []
            units = {
                "per_run_usd": "per run",
                "per_day_usd": "per day",
                "per_month_usd": "per month",
            }
            for name, unit in units.items():
                asked += [f"{Usd(facts[name])} {unit}"] if name in facts else []
            asked += [f"{facts['runs_at_once']} runs at once"] if facts["runs_at_once"] else []
            asked += [str(facts[name]) for name in ("hardware", "providers") if name in facts]
            why = f" Its reason: {facts['why']}." if facts["why"] else ""
            held = f"{Usd(facts['spent_or_reserved_usd'])} of {Usd(facts['total_usd'])}"
            text = f"It asks for {', '.join(asked)}; {held} are spent or reserved.{why} "
            request = facts["request"]
            text += f"trmcloud grant approve {request}, or trmcloud grant deny {request}"
            return f"{facts['principal']} asks for approval", text
        case NoticeKind.TEST:
            return "trmcloud: test", "Notifications work. trmcloud admin notify list"


def _spent(facts: Mapping[str, Any]) -> str:
    return f"{Usd(facts['spent_usd'])} of {Usd(facts['cap_usd'])}"


def trouble_lines(context: Context) -> list[str]:
    """A line for each run that could not be brought up to date by the last ``reconcile``."""
    lines = []
    for run_id, error in context.troubles.items():
        known = isinstance(error, TrmcloudError)
        what = str(error) if known else f"unexpected {type(error).__name__}: {error}"
        lines.append(one_line(f"{run_id} could not be updated: {what}"))
    return lines


def unreached_lines(context: Context) -> list[str]:
    """A line for each provider that gave no list: what it rents to us continues, unseen."""
    return [
        one_line(f"{provider} was not checked: {why}")
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
        return f"{hurt.run_id}: {hurt.words}; settled manually at {hurt.settled}"
    most = "an unknown amount" if hurt.most is None else f"at most {hurt.most}"
    return f"{hurt.run_id}: {hurt.words}; it counts as {most} · trmcloud admin ledger restore"


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
        told.append(f"  missing: {one_line(failure.missing)} exists here but was not sent")
        told.append(f"  try: {one_line(failure.fix)}")
    return told
