"""What trainer, agent and controller tell one another, its bounds and names, and what is refused
of it."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import unicodedata
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.strategies import json_values
from tests.unit.core.manifests import manifest
from trmcloud.core.contract import manifest as mf
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.gate import Check, Verdict
from trmcloud.core.contract.manifest import CheckpointFile, from_json, to_json
from trmcloud.core.contract.pod_contract import (
    AgentReport,
    CheckpointRef,
    Lease,
    Orders,
    PhaseLease,
    PhaseReport,
    PhaseState,
    PodName,
    SaveAnswers,
    load_lease,
    load_orders,
    load_report,
    load_staged,
    parse_pod_name,
)
from trmcloud.core.contract.records import MAX_JSON_BYTES, ContractError, dump
from trmcloud.core.contract.trainer_contract import (
    DEVIATIONS,
    LEAST_OF_LOSS,
    OUTCOMES,
    OVER,
    STALE_AFTER_S,
    TRAINER_STATES,
    Heartbeat,
    PhaseJob,
    load_heartbeat,
    load_job,
    spike_limit,
)
from trmcloud.core.errors import CheckpointError
from trmcloud.core.reported import BY_POD, ReportedValue
from trmcloud.core.text import first_of, one_line, size_text, strip_control
from trmcloud.operations.checkpoints.fetching import with_metrics

# -- What trainer, agent and controller tell one another, and what is refused of it -------------


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
def test_newer_versions_fields_are_ignored(record: Any, load: Callable[[str | bytes], Any]) -> None:
    data = json.loads(dump(record))
    data["colour"] = "red"
    for row in data.get("phases", ()):
        row["colour"] = "red"
    assert load(json.dumps(data)) == record


@each_record
@pytest.mark.parametrize("version", [0, 2, None, "1", [1]])
def test_others_are_refused(record: Any, load: Callable[[str | bytes], Any], version: Any) -> None:
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


anything = json_values(10**400)


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


@given(st.text(max_size=60) | st.from_regex(r"trmc-\w{8}-\w{1,20}-g\d{1,4}-\d{9,11}\s?"))
def test_only_what_we_would_write_is_parsed(text: str) -> None:
    name = parse_pod_name(text)
    assert name is None or str(name) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "trmc-",
        "trmcloud-abcd1234-r1-g1-1790000000",
        "TRMC-abcd1234-r1-g1-1790000000",
        "trmc-abcd123-r1-g1-1790000000",
        " trmc-abcd1234-r1-g1-1790000000",
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
        "trmc-abcd1234-r1-g1-1790000000-worker1",
        "trmc-ABCD1234-r1-g1-1790000000",
        "trmc-abcd1234-r1-g١-1790000000",
        f"trmc-abcd1234-{'r' * 21}-g1-1790000000",
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


# -- contract bounds ----------------------------------------------------------------------------
# What the contract with pods takes for granted: bounds, defaults, how its files are written.


def test_bounds_of_manifests_and_metrics() -> None:
    assert mf.MANIFEST_VERSION == 1
    assert mf.MAX_MANIFEST_BYTES == 1_048_576
    assert mf.MAX_FILE_BYTES == 4_398_046_511_104
    assert contract.MAX_METRICS_BYTES == 67_108_864
    assert (contract.POD_SSH_PORT, contract.INNER_SSH_PORT) == (22, 10022)


def test_a_manifest_is_written_for_people_and_always_alike() -> None:
    text = to_json(manifest())
    assert text.startswith('{\n "cooldown_from": null,\n "cooled": false,')
    assert text.endswith('"world_size": 2\n}\n')
    with pytest.raises(ValueError, match="JSON"):
        to_json(manifest(bpb=float("nan")))


def test_a_manifest_has_one_file_of_weights_and_any_others() -> None:
    weights, state = manifest().files
    more = CheckpointFile("tokenizer.json", "tokenizer", 5, "ab" * 32)
    twice = CheckpointFile("more.safetensors", "weights", 5, "ab" * 32)
    for files in ((weights,), (weights, state, more)):
        assert from_json(to_json(manifest(files=files)), "x").files == files
    none: tuple[CheckpointFile, ...] = ()
    for wrong in ((weights, twice), (weights, twice, state), (state,), (state, more), none):
        with pytest.raises(CheckpointError, match="exactly one weights file"):
            from_json(to_json(manifest(files=wrong)), "x")


def test_what_is_not_said_means_that_nothing_is_asked_for() -> None:
    beat = Heartbeat("r-1", "fast", 1, 7, "b", 1.0, "training", 5, 90)
    assert (beat.tokens, beat.finite) == (0, True)
    assert (beat.skipped, beat.signs) == (0, 0)
    lease = Lease("r-1", "p", 1, 1.0, 2.0, 3.0, 1.0, (), fits_budget=True, min_useful_s=1.0)
    assert (lease.hold, lease.uploads) == (False, False)
    assert (lease.hang_after_s, lease.max_restarts, lease.ready_within_s) == (300.0, 3, 0.0)
    assert (Orders(1).land, Orders(1).save, SaveAnswers().answered) == (False, 0, 0)
    assert PhaseJob("r", "fast", {}, "d", "o", 1).accept_change is False
    phase = PhaseReport("fast")
    assert (phase.attempts, phase.fruitless) == (0, 0)
    assert (phase.lost_steps, phase.lost_s) == (0, 0.0)
    report = AgentReport("r-1", "p", 1, 5, 1.0, 2.0, (), 3.0, 4.0)
    assert (report.landing, report.restarts, report.uploading) == (False, 0, False)


def test_folders_that_were_sent_are_plain_and_absolute() -> None:
    good = contract.StagedFiles("/a/code", ("/a/data", "/a/..b"))
    assert load_staged(contract.dump(good)) == good
    for path in ("", "a/b", "../a", "/a/../b", "/a/..", "/a\0b"):
        for staged in (replace(good, code=path), replace(good, data=("/a", path))):
            text = json.dumps({"code": staged.code, "data": staged.data, "version": 1})
            with pytest.raises(ContractError, match="no plain absolute path"):
                load_staged(text)


def test_one_line_is_one_line() -> None:
    assert one_line("a\tb\nc\r\x1b[2J\u202ed") == "a b cd"
    assert one_line("caf\udce9\ud83d.pt") == "caf%E9.pt", "as it is kept and fetched"
    assert strip_control("a\tb\nc\r\x1b[2J\u202ed") == "a\tb\ncd"


def test_checkpoints_are_the_same_by_their_place_and_bits_alone() -> None:
    kept = CheckpointRef("fast", 5, "ab" * 32, 10, 1.5)
    assert not kept.is_output, "unless it is said"
    assert kept.bits == ("fast", 5, "ab" * 32)
    assert replace(kept, val_bpb=None).bits == kept.bits


@pytest.mark.parametrize(
    ("before", "least", "limit"),
    [
        ([1.0, 3.0], 0.0, 8.0),
        ([1.0, 3.0], 0.75, 11.0),
        ([4.0, 4.0], 0.5, 16.0),
        ([-2.0, -2.0], 0.5, 4.0),
    ],
)
def test_a_spike_is_six_deviations_off_of_which_each_is_a_least_part_of_the_mean(
    before: list[float], least: float, limit: float
) -> None:
    assert spike_limit(before, least) == limit
    assert (DEVIATIONS, OVER, LEAST_OF_LOSS, STALE_AFTER_S) == (6.0, 128, 0.005, 120.0)


def test_a_metric_of_nothing_is_one() -> None:
    bare, scored = manifest(bpb=None), manifest(bpb=0.0)
    (found,) = with_metrics([bare], [scored])
    assert found.val_bpb == 0.0


# -- Whose a pod is, by its name: what is none of ours is never touched -------------------------


NAME = "trmc-0a1b2c3d-r54aa48-g12-1795258139"


def test_a_name_of_ours_is_read_as_it_was_written() -> None:
    name = PodName("0a1b2c3d", "r54aa48", 12, 1795258139)
    assert parse_pod_name(NAME) == name
    assert str(name) == NAME
    assert str(PodName("0a1b2c3d", "r-54-aa48", 12, 1795258139)) == NAME


# -- reported -----------------------------------------------------------------------------------
# A pod's word has no text of its own; a view that wants a bare value does not type-check.


ROOT = Path(__file__).parents[3]


def test_a_pods_word_cannot_be_printed_as_a_fact() -> None:
    told = ReportedValue(1.234567)
    for text in (
        str(told),
        repr(told),
        f"{told}",
        f"{told:.3f}",
        f"{[told]}",
        " ".join(map(str, [told])),
    ):
        assert "1.2" not in text
    with pytest.raises(TypeError):
        bool(told)
    with pytest.raises(TypeError):
        float(told)  # type: ignore[arg-type]
    assert told.as_reported("{:.2f}".format) == f"1.23 {BY_POD}"
    assert told.as_marked("{:.2f}".format) == "1.23*"
    assert told.checked(lambda value: value > 1) is True
    assert told == ReportedValue(1.234567)
    assert told != 1.234567


def test_what_this_machine_measured_is_shown_as_it_is() -> None:
    told = ReportedValue(1.5, here=True)
    assert (told.as_reported(str), told.as_marked(str)) == ("1.5", "1.5")


WRONG = """
from trmcloud.cli.views.metrics import score_rows, score_words
from trmcloud.cli.views.metrics import best_words, metric_cell, metric_words, training_rows
from trmcloud.core.contract.trainer_contract import Heartbeat
from trmcloud.operations.words import bpb
from trmcloud.core.contract.manifest import CheckpointManifest
from trmcloud.core.reported import ReportedValue

def shown(best: CheckpointManifest, told: ReportedValue[float]) -> None:
    score_words(None, best)
    score_rows(None, best)
    bpb(told)
    print(told + 1)
    print("best " + told)

def heard(beat: Heartbeat) -> None:
    metric_words(None, beat)
    metric_cell(beat)
    best_words(None, beat)
    training_rows(beat)
"""


def test_views_that_take_a_bare_value_or_print_a_report_do_not_type_check(tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text(WRONG)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--no-error-summary",
            str(tmp_path / "wrong.py"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = {line.partition("wrong.py:")[2].partition(":")[0] for line in done.stdout.splitlines()}
    assert set(map(str, (*range(10, 15), *range(17, 21)))) <= lines, done.stdout + done.stderr


def test_lists_are_shortened_and_sizes_are_decimal() -> None:
    assert first_of(["a", "b"], 2) == "a, b"
    assert first_of(["a", "b\n", "c", "d"], 2) == "a, b  and 2 more"
    assert list(map(size_text, (999, 1000, 1_500_000_000))) == ["999 bytes", "1.0 kB", "1.5 GB"]
