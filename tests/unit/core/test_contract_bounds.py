"""What the contract with pods takes for granted: bounds, defaults, how its files are written."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.unit.core.manifests import manifest
from trmcloud.core.contract import manifest as mf
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.manifest import CheckpointFile, from_json, pick_best, to_json, to_prune
from trmcloud.core.contract.pod_contract import (
    AgentReport,
    ContractError,
    Kept,
    Lease,
    Orders,
    PhaseReport,
    Saves,
    load_staged,
)
from trmcloud.core.contract.trainer_contract import Heartbeat, PhaseJob
from trmcloud.core.errors import CheckpointError
from trmcloud.core.plain_text import one_line, strip_control


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


def test_of_equals_the_later_is_best_and_none_is_kept_twice() -> None:
    early, late = manifest(10, created_at=5.0), manifest(20, created_at=5.0)
    assert pick_best([early, late]) == pick_best([late, early]) == late
    made = [manifest(10, 1.0), manifest(20, 2.0), manifest(30, 1.5)]
    assert sorted(m.step for m in to_prune(made, 2).kept) == [10, 30]
    assert sorted(m.step for m in to_prune(made, 1).kept) == [10, 30]
    assert to_prune([], 1).kept == ()


def test_what_is_not_said_means_that_nothing_is_asked_for() -> None:
    beat = Heartbeat("r-1", "fast", 1, 7, "b", 1.0, "training", 5, 90)
    assert (beat.tokens, beat.finite) == (0, True)
    assert (beat.skipped, beat.signs) == (0, 0)
    lease = Lease("r-1", "p", 1, 1.0, 2.0, 3.0, 1.0, (), fits_budget=True, min_useful_s=1.0)
    assert (lease.strict_gate, lease.hold, lease.uploads) == (False, False, False)
    assert (lease.hang_after_s, lease.max_restarts, lease.ready_within_s) == (300.0, 3, 0.0)
    assert Orders(1).land is False
    phase = PhaseReport("fast")
    assert (phase.attempts, phase.fruitless) == (0, 0)
    assert (phase.lost_steps, phase.lost_s) == (0, 0.0)
    report = AgentReport("r-1", "p", 1, 5, 1.0, 2.0, (), 3.0, 4.0)
    assert (report.landing, report.restarts, report.uploading) == (False, 0, False)


def test_folders_that_were_sent_are_plain_and_absolute() -> None:
    good = contract.Staged("/a/code", ("/a/data", "/a/..b"))
    assert load_staged(contract.dump(good)) == good
    for path in ("", "a/b", "../a", "/a/../b", "/a/..", "/a\0b"):
        for staged in (replace(good, code=path), replace(good, data=("/a", path))):
            text = json.dumps({"code": staged.code, "data": staged.data, "version": 1})
            with pytest.raises(ContractError, match="no plain absolute path"):
                load_staged(text)


def test_one_line_is_one_line() -> None:
    assert one_line("a\tb\nc\r\x1b[2J\u202ed") == "a b cd"
    assert strip_control("a\tb\nc\r\x1b[2J\u202ed") == "a\tb\ncd"


def test_nothing_is_asked_for_and_no_change_is_taken_where_nobody_says_so() -> None:
    assert Orders(1).save == 0
    assert Saves().answered == 0
    assert PhaseJob("r", "fast", {}, "d", "o", 1).accept_change is False


def test_checkpoints_are_the_same_by_their_place_and_bits_alone() -> None:
    kept = Kept("fast", 5, "ab" * 32, 10, 1.5)
    assert kept.bits == ("fast", 5, "ab" * 32)
    assert replace(kept, val_bpb=None).bits == kept.bits


def test_a_metric_of_nothing_is_one() -> None:
    bare, scored = manifest(bpb=None), manifest(bpb=0.0)
    (found,) = mf.with_metrics([bare], [scored])
    assert found.val_bpb == 0.0
