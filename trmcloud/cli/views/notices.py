"""A notice in words: a title that fits a phone, and a text that says what to type next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trmcloud.cli.views.text import bpb, duration
from trmcloud.core.contract.notices import Notice, NoticeKind
from trmcloud.core.control.outcome_words import MEANINGS
from trmcloud.core.control.reported import BY_POD, POD
from trmcloud.core.money import Usd
from trmcloud.core.outcome import Outcome
from trmcloud.core.plain_text import one_line

_Kind = NoticeKind
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
    title, text = _WORDS[notice.kind](notice, notice.facts)
    return {"title": one_line(title)[:120], "text": one_line(text)[:600]}


def _by(facts: Mapping[str, Any]) -> str:
    return f" {BY_POD}" if facts.get("reported_by") == POD else ""


def _started(notice: Notice, facts: Mapping[str, Any]) -> tuple[str, str]:
    run = notice.run_id
    return f"{run} has started", f"{facts['phase']} is trained{_by(facts)}. trmcloud status {run}"


def _gate(notice: Notice, facts: Mapping[str, Any]) -> tuple[str, str]:
    run = notice.run_id
    told = "passed" if facts["passed"] else "FAILED"
    return (
        f"{run}: gate {told}",
        f"The gate after {facts['phase']} {told}{_by(facts)}. trmcloud gate {run}",
    )


def _cap(notice: Notice, facts: Mapping[str, Any]) -> tuple[str, str]:
    name = f"{facts['level']} {facts['key']}".strip()
    spent, cap = Usd(facts["spent_usd"]), Usd(facts["cap_usd"])
    return (
        f"{facts['percent']} % of the {name} cap is spent",
        f"{spent} of {cap} by our clock. trmcloud budget show",
    )


def _ended(notice: Notice, facts: Mapping[str, Any]) -> tuple[str, str]:
    run, outcome = notice.run_id, str(facts["outcome"])
    known = {each.value: each for each in Outcome}
    meant = MEANINGS.get(known[outcome], "") if outcome in known else ""
    told = [meant] if meant else []
    if "spent_usd" in facts:
        told.append(f"{Usd(facts['spent_usd'])} of {Usd(facts['cap_usd'])} by our clock")
    if "step" in facts:
        told.append(
            f"{facts['phase']} step {facts['step']:,}, bpb {bpb(facts.get('val_bpb'))}{_by(facts)}"
        )
    return f"{run}: {outcome}", f"{'; '.join(told)}. trmcloud status {run}"


def _trouble(notice: Notice, facts: Mapping[str, Any]) -> tuple[str, str]:
    run, what = notice.run_id, str(facts["what"])
    where = f"{facts['phase']} step {facts['step']:,}: " if "phase" in facts else ""
    told = _WHAT.get(what, what.replace("_", " "))
    if not facts["mended"]:
        text = f"{where}{told}{_by(facts)}. trmcloud status {run}"
        return f"{run}: {what.replace('_', ' ')}", text
    by = f"now with {facts['changed']}" if facts["changed"] else "from its last checkpoint"
    lost = f"{facts['lost_steps']:,} steps and {duration(facts['lost_s'])} lost"
    return (
        f"{run}: mended, {what.replace('_', ' ')}",
        f"{where}{told}; goes on {by}, {lost}{_by(facts)}. trmcloud status {run}",
    )


def _lost(notice: Notice, facts: Mapping[str, Any]) -> tuple[str, str]:
    run = notice.run_id
    spent = f"{Usd(facts['spent_usd'])} of {Usd(facts['cap_usd'])}"
    return (
        f"{run}: its pod is lost",
        f"{facts['pod']} at {facts['provider']} ended without a word; {spent} by our clock. "
        f"trmcloud resume {run}",
    )


def _price(notice: Notice, facts: Mapping[str, Any]) -> tuple[str, str]:
    planned, billed = Usd(facts["planned_usd_per_hour"]), Usd(facts["billed_usd_per_hour"])
    now = f" with {facts['hardware']}" if "hardware" in facts else ""
    return (
        f"{notice.run_id}: its price changed",
        f"{billed}/h{now}, planned at {planned}/h; the cap stays. trmcloud status {notice.run_id}",
    )


def _orphan(notice: Notice, facts: Mapping[str, Any]) -> tuple[str, str]:
    return (
        "an orphaned pod was found",
        f"{facts['pod']} at {facts['provider']} is no run's, and may have cost "
        f"{Usd(facts['at_most_usd'])}; it is ended. trmcloud reap --yes",
    )


def _reaper(notice: Notice, facts: Mapping[str, Any]) -> tuple[str, str]:
    silent, every = duration(facts["silent_s"]), duration(facts["every_s"])
    return (
        f"the reaper on {facts['machine']} is silent",
        f"It should come by every {every}, and last did {silent} ago, while something is rented. "
        "trmcloud guard status",
    )


def _test(notice: Notice, facts: Mapping[str, Any]) -> tuple[str, str]:
    return "trmcloud: a test", "If you read this, it works. trmcloud notify list"


_WORDS = {
    _Kind.STARTED: _started,
    _Kind.GATE: _gate,
    _Kind.CAP: _cap,
    _Kind.ENDED: _ended,
    _Kind.TROUBLE: _trouble,
    _Kind.LOST: _lost,
    _Kind.PRICE: _price,
    _Kind.ORPHAN: _orphan,
    _Kind.REAPER: _reaper,
    _Kind.TEST: _test,
}
