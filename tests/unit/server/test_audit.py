"""The audit log as the page shows it: the newest first, a page at a time, its chain checked."""

from __future__ import annotations

from collections.abc import Sequence

from trmcloud.ports.team import Act, AuditRecord, act_to_text, chained
from trmcloud.server.audit import MOST_ACTS, audit_json


class Log:
    """The part of a team that is read."""

    def __init__(self, acts: Sequence[Act]) -> None:
        self.records: list[AuditRecord] = []
        chain = ""
        for seq, act in enumerate(acts, 1):
            chain = chained(chain, seq, act_to_text(act))
            self.records.append(AuditRecord(seq, act, chain))

    def acts(self, after: int = 0) -> Sequence[AuditRecord]:
        return [record for record in self.records if record.seq > after]


def act(number: int, person: str = "ada", **facts: object) -> Act:
    return Act(float(number), person, "lead", "1f", "10.0.0.1", f"do {number}", "done", facts)


def test_pages_follow_one_another_without_a_gap_or_a_repetition() -> None:
    log = Log([act(n, "ada" if n % 3 else "bob") for n in range(1, 2 * MOST_ACTS + 51)])
    seen: list[int] = []
    before = ""
    while True:
        told = audit_json(log, before=before)  # type: ignore[arg-type]
        seen += [each["number"] for each in told["acts"]]
        if not told["more"]:
            break
        before = str(seen[-1])
    assert seen == list(range(2 * MOST_ACTS + 50, 0, -1))
    mine = audit_json(log, person="bob")  # type: ignore[arg-type]
    assert {each["person"] for each in mine["acts"]} == {"bob"}
    assert mine["people"] == ["ada", "bob"], "all of them can be chosen"
    for wrong in ("x", "-1", "1e9", "9" * 40):
        assert len(audit_json(log, before=wrong)["acts"]) == MOST_ACTS  # type: ignore[arg-type]


def test_a_record_that_was_changed_is_named_whoever_is_asked_for() -> None:
    log = Log([act(n, "ada" if n % 2 else "bob") for n in range(1, 9)])
    changed = log.records[4]
    log.records[4] = AuditRecord(changed.seq, act(99), changed.chain)
    for person in ("", "bob"):
        assert audit_json(log, person=person)["broken_at"] == 5  # type: ignore[arg-type]
    del log.records[0]
    assert audit_json(log)["broken_at"] == 1  # type: ignore[arg-type]


def test_dollars_of_runs_are_shown_and_odd_facts_do_no_harm() -> None:
    runs = {"r-1": {"cap_usd": "0.30", "settled_usd": "0.0041"}, "r-2": {"cap_usd": "x"}, "r-3": 7}
    [shown] = audit_json(Log([act(1, runs=runs, exit_code=0)]))["acts"]  # type: ignore[arg-type]
    assert [(each["run"], each["spent"], each["cap"]) for each in shown["runs"]] == [
        ("r-1", "$0.0041", "$0.30"), ("r-2", "–", "–"), ("r-3", "–", "–"),
    ]  # fmt: skip
    [shown] = audit_json(Log([act(1, "a\nb", runs=[1], why="two\nlines")]))["acts"]  # type: ignore[arg-type]
    assert (shown["runs"], shown["person"]) == ([], "a b")
    assert "\n" not in shown["why"]
