"""Whatever a pod says: a checked type, no report, or an error of ours; bounded in time and size."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.mutate import NASTY, briefly, variants
from tests.strategies import json_values
from tests.unit.core.manifests import manifest
from tests.unit.core.runs import AT, a_report, ask, follow, running, the_pod
from tests.unit.core.test_pod_contract import BEAT, JOB, LEASE, ORDERS, REPORT
from trmcloud.adapters.local.run_files import LocalRunFiles
from trmcloud.adapters.ssh.session import explain
from trmcloud.adapters.ssh.sync import MAX_MANIFESTS_BYTES, MOST_MANIFESTS, Mirror, remote_manifests
from trmcloud.core.contract import bucket as bk
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.gate import judge, verdict_from_json
from trmcloud.core.contract.manifest import from_json, to_json
from trmcloud.core.contract.records import (
    MAX_ITEMS,
    MAX_JSON_BYTES,
    ContractError,
    parse,
    parse_lines,
    whole,
)
from trmcloud.core.contract.trainer_contract import load_heartbeat, load_job
from trmcloud.core.control.report import report_on
from trmcloud.core.errors import CheckpointError, TrmcloudError
from trmcloud.operations.checkpoints.bucket_grants import latest_resumable
from trmcloud.operations.checkpoints.fetching import best_of, what_to_prune
from trmcloud.operations.checks.smoke_watch import last_way
from trmcloud.operations.runs.run_facts import first_bpb
from trmcloud.pod.machine.metrics_file import read_metrics

KEPT = contract.CheckpointRef("fast", 120, "ab" * 32, 1000, 1.5)
REPORT = replace(REPORT, kept=(KEPT,), uploaded=(KEPT,), notes={"ssh": "up"}, message="é → …")
GRANTS = bk.Grants(
    "p", AT, {"fast": bk.PhaseSlots(1, ("g1-slot-0",), {"g1-slot-0": KEPT})}, {"a/b/c": "http://x"},
    (bk.FolderGet("/x", (bk.FileGet("a/b.bin", 1, "0" * 64, ("http://x",)),)),), "http://y",
)  # fmt: skip
STAGED = contract.StagedFiles("/workspace/trmcloud/code/x", ("/workspace/trmcloud/data/y",))
LOADERS: list[tuple[Any, Callable[[Any], Any]]] = [
    (REPORT, contract.load_report),
    (BEAT, load_heartbeat),
    (LEASE, contract.load_lease),
    (ORDERS, contract.load_orders),
    (JOB, load_job),
    (STAGED, contract.load_staged),
    (GRANTS, bk.load_grants),
    (bk.Uploads((KEPT,), (KEPT,), 5.0, True, "x"), bk.load_uploads),
]


@pytest.mark.parametrize(("record", "load"), LOADERS, ids=lambda x: type(x).__name__)
def test_a_record_is_what_it_says_or_none(record: Any, load: Callable[[bytes], Any]) -> None:
    text = json.dumps(asdict(record), sort_keys=True).encode()
    assert load(text) == record
    for variant in variants(text, 400):
        with suppress(ContractError), briefly():
            read = load(variant)
            _is_sound(asdict(read))
            assert load(json.dumps(asdict(read), allow_nan=False).encode()) == read


def _is_sound(value: Any, depth: int = 40) -> None:
    """It can be written anywhere, printed, added up, and walked through."""
    assert depth > 0
    if isinstance(value, str):
        value.encode("utf-8")
    elif isinstance(value, (dict, list, tuple)):
        assert len(value) <= 1 << 16
        for item in value:
            _is_sound(item, depth - 1)
        for item in value.values() if isinstance(value, dict) else ():
            _is_sound(item, depth - 1)
    elif isinstance(value, (int, float)):
        assert abs(value) < 1e300
        assert len(str(value)) < 40
        assert f"{value:,.0f} {value:.3f}"


values = json_values(10**400, -1, 1 << 63, "ab" * 32, "fast", "a/b", "\ud800", text=20, leaves=12)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from([loader for _, loader in LOADERS]), st.data())
def test_records_with_any_values(load: Callable[[str], Any], data: Any) -> None:
    record = next(record for record, loader in LOADERS if loader is load)
    fields = asdict(record)
    changes = data.draw(st.dictionaries(st.sampled_from(sorted(fields)), values, max_size=3))
    nested = data.draw(
        st.lists(st.dictionaries(st.sampled_from(sorted(asdict(KEPT))), values), max_size=2)
    )
    for name in ("kept", "uploaded"):
        if name in fields and nested:
            changes[name] = [{**asdict(KEPT), **row} for row in nested]
    with suppress(ContractError):
        _is_sound(asdict(load(json.dumps({**fields, **changes}))))


@settings(max_examples=600, deadline=None)
@given(st.binary(max_size=300) | st.text(max_size=300).map(lambda t: t.encode("utf-8", "replace")))
def test_any_bytes_are_json_or_none(text: bytes) -> None:
    with suppress(ContractError):
        _is_sound(parse(text))
    list(parse_lines(text.split(b"\n")))
    whole(text)


@pytest.mark.parametrize(
    "text",
    [
        b"9" * 5000, b"1e400", b"NaN", b"-Infinity", b"[" * 200_000, b'{"a":' * 100_000,
        b'{"a": 1, "a": 1}', b"\xff", "{}".encode("utf-16"), b"\xef\xbb\xbf{}",
        b'"' + b"x" * 20_000 + b'"', b"[" + b"1," * MAX_ITEMS + b"1]",
        b" " * (MAX_JSON_BYTES + 1), b"1." + b"0" * 10_000,
        b"[" * 40 + b"]" * 40, b"-" + b"1" * 20, b"18446744073709551616",
    ],
    ids=lambda text: repr(text[:12]),
)  # fmt: skip
def test_text_beyond_all_bounds_is_none(text: bytes) -> None:
    with pytest.raises(ContractError), briefly():
        parse(text)


def test_bounds_are_no_less_than_they_say() -> None:
    assert parse(b"[" * 30 + b"]" * 30)
    assert len(parse(b"[" + b"1," * (MAX_ITEMS - 1) + b"1]")) == MAX_ITEMS
    assert parse(b"9223372036854775807") == (1 << 63) - 1
    assert parse(b"-9223372036854775807") == 1 - (1 << 63)
    assert parse(b'"\\ud83d\\ude00 \\ud83d x"') == "😀 ? x"
    assert whole("0042") == 42
    assert [whole(text) for text in ("", "-1", "²", "٣", "1 ", "9" * 20)] == [None] * 6
    assert whole("9223372036854775808") is None
    assert whole(b"10", most=9) is None


# -- metrics, manifests, verdicts -----------------------------------------------------------------
METRICS = (
    b'{"kind": "train", "step": 1, "grad_norm": 0.7, "loss": 5.0}\n'
    b'{"kind": "eval", "step": 1, "val_bpb": 2.0, "val_step_losses": [5.0, 4.0]}\n'
    b'{"kind": "eval", "step": 2, "val_bpb": 1.5, "val_step_losses": [4.5, 4.0]}\n'
)


class Files:
    def __init__(self, path: Path) -> None:
        self.files = LocalRunFiles(path)


def test_metrics_are_judged_whatever_they_hold(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "r-1" / "fast" / contract.METRICS_NAME
    path.parent.mkdir(parents=True)
    lines = [line for row in METRICS.splitlines() for line in variants(row, 60)]
    for n in range(0, len(lines), 3):
        path.write_bytes(b"\n".join(lines[n : n + 3]) + b"\n" + METRICS)
        with briefly():
            read = read_metrics(path)
            verdict = judge("fast", read)
            assert verdict_from_json(json.loads(json.dumps(verdict.to_json()))) == verdict
            assert first_bpb(Files(tmp_path), "r-1", "fast") is not None  # type: ignore[arg-type]


def test_more_metrics_than_anybody_reads(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(METRICS + b"{}\n" * 300_000 + METRICS)
    with briefly(20.0):
        read = read_metrics(path)
    assert len(read) == 1 << 17
    assert (read[0]["kind"], read[-1]["val_bpb"]) == ("train", 1.5)
    path.write_bytes(b"[" * 200_000 + b"\n" + METRICS)
    assert len(read_metrics(path)) == 3
    assert read_metrics(tmp_path) == []
    assert read_metrics(tmp_path / "nothing") == []


def test_manifests_are_chosen_from_and_pruned_whatever_they_hold() -> None:
    text = to_json(manifest(settings={"keep_best": 2, "depth": 2})).encode()
    read = []
    for variant in variants(text, 600):
        with suppress(CheckpointError), briefly():
            read.append(from_json(variant, "x"))
            assert from_json(to_json(read[-1]), "x") == read[-1]
    assert len(read) > 20
    for n in range(0, len(read), 5):
        few = read[n : n + 5]
        best_of(few)
        latest_resumable(few)
        with suppress(TrmcloudError):
            what_to_prune(few, None)
        report_on(running(), few, AT + 100)


# -- the answer to one question -------------------------------------------------------------------
POD = REPORT.pod_name


def _line(label: str, content: bytes, *words: str) -> bytes:
    return " ".join((label, *words, base64.b64encode(content).decode())).encode()


def _answer() -> bytes:
    rows = [
        _line("agent", contract.dump(REPORT).encode()),
        _line("heartbeat/fast", contract.dump(BEAT).encode()),
        _line("manifest/fast", to_json(manifest()).encode(), "step-00000120", "900-1790000000"),
        b"manifests/fast",
        _line("metrics.jsonl/fast", METRICS, str(len(METRICS))),
        _line("train.log/fast", b"\x1b[2Jhello\n", "10"),
    ]
    return b"\n".join(rows) + b"\n"


def test_an_answer_is_kept_as_far_as_it_can_be_understood(tmp_path: Path) -> None:
    files = LocalRunFiles(tmp_path)
    asked = {"metrics.jsonl/fast": 0, "train.log/fast": 0}
    assert Mirror(tmp_path, POD, "r-1").take(_answer(), asked) == REPORT
    contents = (contract.dump(REPORT), contract.dump(BEAT), to_json(manifest()))
    answers = list(variants(_answer(), 300))
    for label, content in zip(("agent", "heartbeat/fast", "manifest/fast"), contents, strict=True):
        words = ("step-00000120", "900-1790000000") if label.startswith("manifest") else ()
        answers += [_line(label, text, *words) for text in variants(content.encode(), 80)]
    for number in NASTY:
        bare = number.strip('"').encode("utf-8", "surrogatepass")
        answers.append(b"metrics.jsonl/fast " + bare + b" QUJD\ntrain.log/fast " + bare + b" QUJD")
        answers.append(b"manifest/fast " + bare + b" " + bare + b" e30=\nmanifests/fast")
    for answer in answers:
        with briefly():
            report = Mirror(tmp_path, POD, "r-1").take(answer, asked)
            assert report is None or (report.pod_name, report.run_id) == (POD, "r-1")
    files.phases("r-1")
    files.heartbeat("r-1", "fast")
    files.manifests("r-1")
    remote_manifests(tmp_path, "r-1")
    folders = {
        path.relative_to(tmp_path).parts[:3] for path in tmp_path.rglob("*") if path.is_file()
    }
    assert folders <= {("pods", POD, "agent.json"), ("runs", "r-1", "fast")}


def test_a_pod_cannot_fill_the_disk_with_manifests(tmp_path: Path) -> None:
    mirror = Mirror(tmp_path, POD, "r-1")
    folder = tmp_path / "runs" / "r-1" / "fast" / "manifests"

    def offer(step: int, version: int, padding: int) -> bytes:
        made = manifest(step, extra={f"k{n}": "x" * 16_000 for n in range(padding)})
        words = (f"step-{step:08d}", f"{version}-1")
        return _line("manifest/fast", to_json(made).encode(), *words)

    for first in range(0, 48, 8):
        rows = [offer(step, 1, 60) for step in range(first, first + 8)]
        mirror.take(b"\n".join(rows), {})
        held = sum(path.stat().st_size for path in folder.iterdir())
        assert held <= MAX_MANIFESTS_BYTES
    many = [offer(step, version, 0) for step in range(3) for version in range(220)]
    mirror.take(b"\n".join(many), {})
    for n in range(0, 660, 16):
        mirror.take(b"\n".join(many[n : n + 16]), {})
    assert len(list(folder.iterdir())) <= MOST_MANIFESTS


def test_an_answer_of_nothing_but_lines(tmp_path: Path) -> None:
    mirror = Mirror(tmp_path, POD, "r-1")
    for line in (b"\n", b"ab\n", b"manifest/fast step-00000001 1-1 e30=\n", b"agent e30=\n"):
        with briefly():
            assert mirror.take(line * ((12 << 20) // len(line)), {}) is None


# -- what is decided by a report that is well formed, and lies -------------------------------------
def test_decisions_survive_any_report() -> None:
    """Nothing that a pod says of itself raises, nor ends anybody else's run."""
    run = running()
    ended = contract.PhaseState.ENDED
    honest = a_report(
        run,
        phases=(contract.PhaseReport("fast", ended, AT, AT + 4, "finished", 1),),
        kept=(KEPT,),
    )  # fmt: skip
    decided = 0
    for variant in variants(contract.dump(honest).encode(), 1500):
        try:
            report = contract.load_report(variant)
        except ContractError:
            continue
        followed, actions = follow(run, AT + 90, pods=[the_pod(run)], report=report)
        assert all(action.verb in ("pull", "stage", "grant", "land") for action in actions)
        for late in (AT + 500, run.generations[0].hard_stop_at + 1):
            ask(followed, late, pods=[the_pod(run)], report=report)
        _is_sound(json.loads(json.dumps([asdict(e) for e in followed.phase_accounts])))
        report_on(followed, (), AT + 600)
        decided += 1
    assert decided > 100


# -- words ------------------------------------------------------------------------------
@settings(max_examples=300, deadline=None)
@given(st.text(max_size=300))
def test_sshs_last_words_and_a_pods_record_of_its_end(text: str) -> None:
    assert isinstance(explain(text, "pod"), TrmcloudError)
    assert all(isinstance(word, str) for word in last_way(text))


def test_records_of_a_pods_end_mutated() -> None:
    text = (
        b'{"attempts": [{"way": "runpodctl", "ok": false, "code": 7}, {"way": "api", "ok": true}]}'
    )
    for variant in variants(text, 300):
        with briefly():
            last, before = last_way(variant.decode("utf-8", "replace"))
            assert len(last) < 200
            assert len(before) < 2000
