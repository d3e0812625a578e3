"""What trainer, agent and controller tell one another, and what is refused of it."""

from __future__ import annotations

import json
import math
import unicodedata
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trmcloud.core.contract.gate import Check, Verdict
from trmcloud.core.contract.pod_contract import (
    MAX_JSON_BYTES,
    AgentReport,
    ContractError,
    Lease,
    Orders,
    PhaseLease,
    PhaseReport,
    PhaseState,
    PodName,
    dump,
    load_lease,
    load_orders,
    load_report,
    parse_pod_name,
    strip_control,
)
from trmcloud.core.contract.trainer_contract import (
    OUTCOMES,
    TRAINER_STATES,
    Heartbeat,
    PhaseJob,
    load_heartbeat,
    load_job,
)

AT = 1_790_000_000.0
JOB = PhaseJob("r-1", "fast", {"depth": 2, "lr": 1e-3, "names": ["a"]}, "/data", "/out", 2)
BEAT = Heartbeat(
    "r-1", "fast", 1, 77, "boot-1", AT, "training", 5, 90,
    step_seconds=0.5, step_losses=(5.0, 4.0), seconds={"training": 3.0},
)  # fmt: skip
LEASE = Lease(
    "r-1", "trmc-abcd1234-r1-g1-1790003000", 1, AT, AT + 2900, AT + 3000, 100.0,
    phases=(PhaseLease("fast", 0.0, 900.0, 1e15), PhaseLease("extreme", 0.0, 900.0, 1e15)),
    fits_budget=True, min_useful_s=10.0,
)  # fmt: skip
ORDERS = Orders(epoch=2, land=True, reason="enough", finished=("fast",))
PASSED = Verdict("fast", True, (Check("validation order", None, False, "5.0 > 4.0"),))
GATE: dict[str, Any] = PASSED.to_json()
KEPT = {"phase": "fast", "step": 5, "sha256": "ab" * 32, "size_bytes": 10, "val_bpb": 1.5}
REPORT = AgentReport(
    "r-1", "trmc-abcd1234-r1-g1-1790003000", 1, 7, AT, AT + 5,
    phases=(PhaseReport("fast", PhaseState.ENDED, AT, AT + 4, "finished", 1, gate=PASSED),),
    soft_stop_at=AT + 2900, hard_stop_at=AT + 3000,
)  # fmt: skip
RECORDS: list[tuple[Any, Callable[[str | bytes], Any]]] = [
    (JOB, load_job),
    (BEAT, load_heartbeat),
    (LEASE, load_lease),
    (ORDERS, load_orders),
    (REPORT, load_report),
]
each_record = pytest.mark.parametrize(
    ("record", "load"), RECORDS, ids=[type(record).__name__ for record, _ in RECORDS]
)


# -- reading -----------------------------------------------------------------------------------


@each_record
def test_a_record_survives_json(record: Any, load: Callable[[str | bytes], Any]) -> None:
    assert load(dump(record)) == record
    assert load(dump(record).encode()) == record
    assert "\n" not in dump(record)


@each_record
def test_what_a_newer_version_adds_is_passed_over(
    record: Any, load: Callable[[str | bytes], Any]
) -> None:
    data = json.loads(dump(record))
    data["colour"] = "red"
    for row in data.get("phases", ()):
        row["colour"] = "red"
    assert load(json.dumps(data)) == record


@each_record
@pytest.mark.parametrize("version", [0, 2, None, "1", [1]])
def test_another_version_is_refused(
    record: Any, load: Callable[[str | bytes], Any], version: Any
) -> None:
    data = {**json.loads(dump(record)), "version": version}
    with pytest.raises(ContractError, match="version"):
        load(json.dumps(data))


@each_record
@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "[]",
        "5",
        '"x"',
        "{}",
        '{"version": 1}',
        "[" * 100_000,
        b"\xff\xfe",
        " " * (MAX_JSON_BYTES + 1),
    ],
    ids=lambda text: repr(text[:12]),
)
def test_text_that_is_no_record_is_refused(
    record: Any, load: Callable[[str | bytes], Any], text: str | bytes
) -> None:
    with pytest.raises(ContractError):
        load(text)


@pytest.mark.parametrize(
    ("load", "record", "changes"),
    [
        (load_heartbeat, BEAT, {"state": "dancing"}),
        (load_heartbeat, BEAT, {"outcome": "victory"}),
        (load_heartbeat, BEAT, {"step": "5"}),
        (load_heartbeat, BEAT, {"step": 5.5}),
        (load_heartbeat, BEAT, {"step": True}),
        (load_heartbeat, BEAT, {"step": 10**400}),
        (load_heartbeat, BEAT, {"at": None}),
        (load_heartbeat, BEAT, {"at": math.nan}),
        (load_heartbeat, BEAT, {"val_bpb": math.inf}),
        (load_heartbeat, BEAT, {"val_bpb": "1.5"}),
        (load_heartbeat, BEAT, {"message": 5}),
        (load_heartbeat, BEAT, {"message": None}),
        (load_heartbeat, BEAT, {"finite": 1}),
        (load_heartbeat, BEAT, {"seconds": None}),
        (load_heartbeat, BEAT, {"seconds": {"training": "3"}}),
        (load_heartbeat, BEAT, {"seconds": [["training", 3]]}),
        (load_heartbeat, BEAT, {"step_losses": None}),
        (load_heartbeat, BEAT, {"step_losses": ["5.0"]}),
        (load_heartbeat, BEAT, {"step_losses": 5}),
        (load_orders, ORDERS, {"land": 1}),
        (load_orders, ORDERS, {"epoch": "2"}),
        (load_orders, ORDERS, {"finished": 3}),
        (load_orders, ORDERS, {"finished": [3]}),
        (load_job, JOB, {"settings": None}),
        (load_job, JOB, {"settings": {"x": {"y": [math.nan]}}}),
        (load_lease, LEASE, {"hard_stop_at": None}),
        (load_lease, LEASE, {"hard_stop_at": math.inf}),
        (load_lease, LEASE, {"phases": None}),
        (load_lease, LEASE, {"phases": [5]}),
        (load_lease, LEASE, {"phases": [{}]}),
        (load_lease, LEASE, {"phases": [{"name": "fast"}]}),
        (load_report, REPORT, {"phases": "fast"}),
        (load_report, REPORT, {"phases": [{"name": "fast", "seconds": None}]}),
        (load_report, REPORT, {"phases": [{"name": "fast", "gate": [1]}]}),
        (load_report, REPORT, {"phases": [{"name": "fast", "gate": {}}]}),
        (load_report, REPORT, {"phases": [{"name": "fast", "gate": {"passed": True}}]}),
        (load_report, REPORT, {"phases": [{"name": "fast", "gate": {**GATE, "passed": 1}}]}),
        (load_report, REPORT, {"phases": [{"name": "fast", "gate": {**GATE, "checks": [{}]}}]}),
        (load_report, REPORT, {"phases": [{"name": "a/b"}]}),
        (load_report, REPORT, {"kept": [{**KEPT, "phase": "a/b"}]}),
        (load_report, REPORT, {"kept": [{**KEPT, "step": -1}]}),
        (load_report, REPORT, {"kept": [{**KEPT, "step": 10**8}]}),
        (load_report, REPORT, {"kept": [{**KEPT, "size_bytes": -1}]}),
        (load_report, REPORT, {"kept": [{**KEPT, "sha256": "a/b"}]}),
        (load_report, REPORT, {"uploaded": [KEPT] * 5000}),
        (load_report, REPORT, {"at": -1.0}),
        (load_report, REPORT, {"at": 1e12}),
        (load_report, REPORT, {"message": "x" * 20_000}),
        (load_report, REPORT, {"version": True, "epoch": True}),
        (load_report, REPORT, {"phases": [{"name": "fast", "val_bpb": math.nan}]}),
        (load_report, REPORT, {"phases": [{"name": None}]}),
        (load_report, REPORT, {"result": 5}),
    ],
)
def test_a_field_of_another_type_is_refused(
    load: Callable[[str | bytes], Any], record: Any, changes: dict[str, Any]
) -> None:
    """The reader does it once, so that whoever decides by a record need not look again."""
    data = {**json.loads(dump(record)), **changes}
    with pytest.raises(ContractError):
        load(json.dumps(data))


def test_numbers_that_are_none_are_written_as_null() -> None:
    beat = replace(BEAT, loss=math.nan, seconds={"training": 1.0}, val_bpb=math.inf)
    read = load_heartbeat(dump(beat))
    assert (read.loss, read.val_bpb) == (None, None)


def test_a_trainer_whose_losses_broke_can_still_say_so() -> None:
    broke = replace(BEAT, state="ended", outcome="non_finite", step_losses=(5.0, math.nan, 4.0))
    read = load_heartbeat(dump(broke))
    assert (read.outcome, read.step_losses) == ("non_finite", ())


def test_a_number_too_large_for_a_float_is_refused() -> None:
    text = dump(BEAT).replace(f'"at": {AT}', '"at": 1e999')
    assert "1e999" in text
    with pytest.raises(ContractError):
        load_heartbeat(text)


@pytest.mark.parametrize("state", TRAINER_STATES)
@pytest.mark.parametrize("outcome", [None, *OUTCOMES])
def test_every_state_and_outcome_is_understood(state: str, outcome: str | None) -> None:
    beat = replace(BEAT, state=state, outcome=outcome)
    assert load_heartbeat(dump(beat)) == beat


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.just(10**400),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=10,
)


@settings(max_examples=120)
@given(st.data())
def test_a_record_with_anything_in_it_is_read_or_refused(data: st.DataObject) -> None:
    record, load = data.draw(st.sampled_from(RECORDS))
    fields = json.loads(dump(record))
    keys = st.sampled_from(sorted(fields))
    fields.update(data.draw(st.dictionaries(keys, anything, min_size=1, max_size=3)))
    fields["version"] = 1
    if fields.get("phases") and data.draw(st.booleans()):
        with suppress(TypeError, AttributeError, ValueError):
            rows = list(fields["phases"])
            rows[0].update(data.draw(st.dictionaries(st.sampled_from(sorted(rows[0])), anything)))
    with suppress(ContractError):
        read = load(json.dumps(fields))
        assert load(dump(read)) == read


@given(st.binary(max_size=100) | st.text(max_size=100))
def test_any_bytes_are_read_or_refused(text: str | bytes) -> None:
    for _, load in RECORDS:
        with suppress(ContractError):
            load(text)


# -- pod names ---------------------------------------------------------------------------------

run_ids = st.from_regex(r"[a-z0-9]{1,20}", fullmatch=True)
ledgers = st.from_regex(r"[0-9a-f]{8}", fullmatch=True)


@given(ledgers, run_ids, st.integers(1, 9999), st.integers(10**8, 10**11 - 1))
def test_a_pods_name_says_whose_it_is(
    ledger: str, run_id: str, generation: int, hard_stop_at: int
) -> None:
    name = PodName(ledger, run_id, generation, hard_stop_at)
    assert parse_pod_name(str(name)) == name


@given(ledgers, run_ids, run_ids, st.integers(1, 9999), st.integers(10**8, 10**11 - 1))
def test_a_pods_name_is_unique_per_run_and_generation(
    ledger: str, one: str, two: str, generation: int, hard_stop_at: int
) -> None:
    name = PodName(ledger, one, generation, hard_stop_at)
    assert (str(name) == str(replace(name, run_id=two))) == (one == two)
    assert str(name) != str(replace(name, generation=generation + 1))


def test_a_run_ids_hyphen_is_left_out_of_the_name() -> None:
    name = PodName("abcd1234", "r-1a2b3c", 1, 1_790_000_000)
    assert str(name) == "trmc-abcd1234-r1a2b3c-g1-1790000000"
    assert parse_pod_name(str(name)) == replace(name, run_id="r1a2b3c")


@given(st.text(max_size=60) | st.from_regex(r"trmc-\w{8}-\w{1,20}-g\d{1,4}-\d{9,11}\s?"))
def test_only_what_we_would_write_is_parsed(text: str) -> None:
    name = parse_pod_name(text)
    assert name is None or str(name) == text


@pytest.mark.parametrize(
    "text",
    [
        "trmc-abcd1234-r1-g1-1790000000 ",
        "trmc-abcd1234-r1-g1-1790000000\n",
        "trmc-abcd1234-r1-g01-1790000000",
        "trmc-abcd1234-r1-g1-0790000000",
        "trmc-abcd1234-r1-g1-١٧٩٠٠٠٠٠٠٠",
        "trmc-abcd1234--g1-1790000000",
        "trmc-abcd1234-r-1-g1-1790000000",
        "trmc-abcd12345-r1-g1-1790000000",
        "trmc-abcd1234-r1-g1-179000000000",
        "trmc-abcd1234-r1-g12345-1790000000",
        "xtrmc-abcd1234-r1-g1-1790000000",
    ],
)
def test_what_only_looks_like_ours_is_nobodys(text: str) -> None:
    assert parse_pod_name(text) is None


# -- text for a terminal -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é 漢字 🙂\tx\ny", "plain é 漢字 🙂\tx\ny"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b[2J\x1b[Hcleared", "cleared"),
        ("\x1b]0;title\x07x", "]0;titlex"),
        ("over\rwritten", "overwritten"),
        ("\x9b31mred", "31mred"),
        ("a\u202eb\u2066c\u200fd", "abcd"),
        ("a\ud800b", "ab"),
        ("\x1b\x1b[31m[31mx", "[31mx"),
        ("bell\x07 back\x08", "bell back"),
        ("\u2028\u2029", ""),
    ],
)
def test_a_terminal_is_not_commanded(text: str, shown: str) -> None:
    assert strip_control(text) == shown


@given(st.text(st.characters()) | st.text("\x1b[]0;m\x07\x9b\u202ex\ud800", max_size=12))
def test_nothing_that_commands_is_left(text: str) -> None:
    shown = strip_control(text)
    assert strip_control(shown) == shown
    assert all(unicodedata.category(c) not in ("Cc", "Cs") or c in "\t\n" for c in shown)
    assert not set(shown) & set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
    shown.encode()
