"""A manifest is hostile text until proven otherwise; which checkpoint is the best; checkpoints
in shards."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.present import present
from tests.strategies import json_values
from tests.unit.core.manifests import STATE, WEIGHTS, manifest
from trmcloud.core.contract.command import RECIPE
from trmcloud.core.contract.manifest import (
    BEGUN_AT,
    FINAL_AT,
    GATHERED,
    KINDS,
    LAYOUT,
    MAX_FILE_BYTES,
    MAX_FILES,
    MAX_MANIFEST_BYTES,
    METRIC,
    NAMED_BEST,
    OUTPUTS,
    OUTPUTS_AT,
    CheckpointFile,
    CheckpointManifest,
    from_json,
    is_before_cooldown,
    is_complete,
    own_bests,
    parse_step_dir,
    pick_best,
    pick_latest,
    shard_name,
    step_dir_name,
    to_json,
    to_prune,
    whole_name,
    with_metric,
)
from trmcloud.core.contract.manifest import rivals as rivals_of
from trmcloud.core.errors import CheckpointError
from trmcloud.operations.checkpoints.fetching import best_of, with_metrics

# -- A manifest is hostile text until proven otherwise ------------------------------------------


WHERE = "r1/fast/checkpoints/step-00000120"


def raw() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(to_json(manifest()))
    return data


def test_a_manifest_survives_json() -> None:
    for made in (manifest(), manifest(bpb=None, extra={"note": "é"}), manifest(step_losses=())):
        assert from_json(to_json(made), WHERE) == made
        assert from_json(to_json(made).encode(), WHERE) == made
    assert manifest().sha256 == WEIGHTS.sha256
    assert manifest().size_bytes == 1010
    assert manifest().label == "fast/step-00000120"


def a_file(**changes: Any) -> Callable[[dict[str, Any]], None]:
    def change(data: dict[str, Any]) -> None:
        data["files"][1].update(changes)

    return change


def a_field(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda data: data.update(changes)


HOSTILE_NAMES = [
    "../weights.safetensors",
    "/etc/passwd",
    "a/b.json",
    "..",
    ".",
    "",
    ".hidden.json",
    "a\\b.json",
    "C:a.json",
    "state.json\n",
    "state.json\0.safetensors",
    "st\u202eate.json",
    "stäte.json",
    "STATE.json",
    "state.pkl",
    "state.pt",
    "state.bin",
    "state.json.pkl",
    "state",
    "manifest.json",
    "-rf.json",
    "x" * 200 + ".json",
    5,
    None,
    ["state.json"],
]


@pytest.mark.parametrize("name", HOSTILE_NAMES, ids=repr)
def test_a_file_name_is_flat_and_of_a_kind_that_cannot_run(name: Any) -> None:
    data = raw()
    a_file(name=name)(data)
    with pytest.raises(CheckpointError) as caught:
        from_json(json.dumps(data), WHERE)
    assert caught.value.where == WHERE


@pytest.mark.parametrize(
    "change",
    [
        a_file(kind="pickle"),
        a_file(kind=None),
        a_file(kind=["state"]),
        a_file(sha256="ab"),
        a_file(sha256="AB" * 32),
        a_file(sha256="zz" * 32),
        a_file(sha256=None),
        a_file(sha256="ab" * 32 + "\n"),
        a_file(size_bytes=-1),
        a_file(size_bytes=1.5),
        a_file(size_bytes=True),
        a_file(size_bytes="10"),
        a_file(size_bytes=MAX_FILE_BYTES + 1),
        a_file(name="weights.safetensors"),
        a_file(kind="weights"),
        a_field(files=[]),
        a_field(files=None),
        a_field(files={"weights.safetensors": 1}),
        a_field(files="weights"),
        a_field(files=[None]),
        a_field(version=2),
        a_field(version=None),
        a_field(version="1"),
        a_field(run_id="../../x"),
        a_field(run_id=""),
        a_field(run_id=7),
        a_field(phase="a/b"),
        a_field(phase=".hidden"),
        a_field(phase="fast\n"),
        a_field(recipe="\x1b[31m"),
        a_field(recipe="x" * 81),
        a_field(step=-1),
        a_field(step=10**8),
        a_field(step=10**400),
        a_field(step=1.0),
        a_field(step=None),
        a_field(tokens=10**30),
        a_field(world_size=True),
        a_field(created_at="today"),
        a_field(created_at=None),
        a_field(created_at=10**400),
        a_field(val_bpb="1.5"),
        a_field(val_bpb=[1.5]),
        a_field(val_bpb=True),
        a_field(step_losses=None),
        a_field(step_losses="12"),
        a_field(step_losses=[None]),
        a_field(step_losses=["5.0"]),
        a_field(settings=None),
        a_field(settings=[["depth", 2]]),
        a_field(settings="ab"),
        a_field(extra=5),
    ],
)
def test_what_is_not_a_manifest_is_refused(
    change: Callable[[dict[str, Any]], None],
) -> None:
    data = raw()
    change(data)
    with pytest.raises(CheckpointError) as caught:
        from_json(json.dumps(data), WHERE)
    assert caught.value.where == WHERE
    assert len(str(caught.value)) < 500, "hostile text is not repeated at length"


@pytest.mark.parametrize("key", [k for k in raw() if k not in ("extra", "cooldown_from")])
def test_no_field_may_be_missing(key: str) -> None:
    data = raw()
    del data[key]
    with pytest.raises(CheckpointError):
        from_json(json.dumps(data), WHERE)


def test_a_field_of_a_newer_version_is_passed_over() -> None:
    data = raw()
    data["colour"] = "red"
    assert from_json(json.dumps(data), WHERE) == manifest()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "[]",
        "5",
        '"text"',
        "[" * 100_000,
        '{"a":' * 50_000,
        "\ufeff{}",
        b"\xff\xfe",
        b"\x80",
        " " * (MAX_MANIFEST_BYTES + 1),
        "9" * 10_000,
    ],
    ids=lambda text: repr(text[:12]),
)
def test_text_that_is_no_manifest_at_all(text: str | bytes) -> None:
    with pytest.raises(CheckpointError):
        from_json(text, WHERE)


def test_more_files_than_any_checkpoint_has() -> None:
    data = raw()
    data["files"] += [
        {"name": f"f{n}.json", "kind": "state", "size_bytes": 1, "sha256": "ab" * 32}
        for n in range(MAX_FILES)
    ]
    with pytest.raises(CheckpointError):
        from_json(json.dumps(data, separators=(",", ":")), WHERE)


@pytest.mark.parametrize("bad", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize("place", ["val_bpb", "created_at", "step_losses", "settings", "extra"])
def test_a_number_that_is_none_is_refused_wherever_it_stands(bad: str, place: str) -> None:
    data = raw()
    data[place] = {"x": "HERE"} if place in ("settings", "extra") else "HERE"
    if place == "step_losses":
        data[place] = [5.0, "HERE"]
    with pytest.raises(CheckpointError):
        from_json(json.dumps(data).replace('"HERE"', bad), WHERE)


anything = json_values(10**400, "ab" * 32, "weights.safetensors", *KINDS)


@settings(max_examples=120)
@given(st.dictionaries(st.sampled_from(sorted(raw())), anything, min_size=1, max_size=4))
def test_a_manifest_with_anything_in_it_is_read_or_refused(changes: dict[str, Any]) -> None:
    data = {**raw(), **changes}
    read_or_refuse(json.dumps(data))


@settings(max_examples=80)
@given(st.dictionaries(st.sampled_from(["name", "kind", "sha256", "size_bytes"]), anything))
def test_a_file_entry_with_anything_in_it_is_read_or_refused(changes: dict[str, Any]) -> None:
    data = raw()
    data["files"][1].update(changes)
    read_or_refuse(json.dumps(data))


@given(anything)
def test_any_json_is_read_or_refused(data: Any) -> None:
    read_or_refuse(json.dumps(data))


@given(st.binary(max_size=200) | st.text(max_size=200))
def test_any_bytes_are_read_or_refused(text: str | bytes) -> None:
    read_or_refuse(text)


@given(st.integers(0, 10**6), st.integers(0, 7))
def test_a_flipped_bit_is_read_or_refused(place: int, bit: int) -> None:
    text = bytearray(to_json(manifest()).encode())
    text[place % len(text)] ^= 1 << bit
    read_or_refuse(bytes(text))


def read_or_refuse(text: str | bytes) -> None:
    try:
        made = from_json(text, WHERE)
    except CheckpointError:
        return
    assert from_json(to_json(made), WHERE) == made, "what is accepted can be written again"
    assert all("/" not in file.name and ".." not in file.name for file in made.files)
    assert made.val_bpb is None or math.isfinite(made.val_bpb)
    assert parse_step_dir(step_dir_name(made.step)) == made.step


@pytest.mark.parametrize("step", [0, 1, 120, 99_999_999])
def test_a_folders_name_brings_its_step_back(step: int) -> None:
    assert parse_step_dir(step_dir_name(step)) == step


@pytest.mark.parametrize(
    "name",
    [
        "step-120",
        "step-000000120",
        "step--0000120",
        "step-0000012a",
        ".step-00000120",
        "step-١٢٣٤٥٦٧٨",
        "step-00000120\n",
        "step-00000120.tmp",
        "",
        "STEP-00000120",
    ],
)
def test_a_folder_of_another_name_is_no_checkpoint(name: str) -> None:
    assert parse_step_dir(name) is None


# -- Of a run's checkpoints the best wins, and the best and the latest stay ---------------------


# -- choosing ----------------------------------------------------------------------------------


def test_the_lowest_bits_per_byte_are_best() -> None:
    assert pick_best([manifest(1, 2.0), manifest(2, 1.5), manifest(3, 1.7)]) == manifest(2, 1.5)


@pytest.mark.parametrize("bad", [math.nan, -math.inf, math.inf, None])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_nan_never_wins(bad: float | None, place: int) -> None:
    row = [manifest(1, 2.0), manifest(2, 1.5)]
    row.insert(place, manifest(3, bad))
    assert pick_best(row) == manifest(2, 1.5)
    assert pick_best([manifest(3, bad)]) is None


def test_of_equals_the_later_is_best() -> None:
    assert pick_best([manifest(9, 1.5), manifest(10, 1.5), manifest(2, 1.5)]) == manifest(10, 1.5)


def test_of_equals_at_one_step_the_newer_is_best() -> None:
    older, newer = manifest(9, 1.5, created_at=5.0), manifest(9, 1.5, "extreme", created_at=6.0)
    assert pick_best([older, newer]) == pick_best([newer, older]) == newer


def test_of_nothing_there_is_neither_best_nor_latest() -> None:
    assert pick_best([]) is None
    assert pick_latest([]) is None


def test_the_latest_is_so_by_time_across_phases() -> None:
    fast = manifest(900, created_at=100.0)
    extreme = manifest(10, phase="extreme", created_at=200.0)
    assert pick_latest([extreme, fast]) == extreme


# -- pruning -----------------------------------------------------------------------------------


def test_the_best_and_the_latest_stay() -> None:
    row = [manifest(1, 1.9), manifest(2, 1.2), manifest(3, 1.5), manifest(4, 1.4), manifest(5, 1.8)]
    pruning = to_prune(row, keep_best=2)
    assert {m.step for m in pruning.kept} == {2, 4, 5}
    assert [m.step for m in pruning.checkpoints] == [1, 3]
    assert pruning.freed_bytes == 2 * 1010
    assert sorted(m.step for m in to_prune(row[:4], keep_best=2).kept) == [2, 4], "none twice"


rows = st.lists(
    st.tuples(
        st.integers(0, 30),
        st.none() | st.floats() | st.sampled_from([1.0, 1.5]),
        st.sampled_from(["fast", "extreme"]),
    ),
    max_size=12,
    unique_by=lambda row: (row[0], row[2]),
)


@given(rows, st.integers(-1, 5))
def test_pruning_never_takes_the_best_or_the_latest(
    drawn: list[tuple[int, float | None, str]], keep_best: int
) -> None:
    every = [manifest(step, bpb, phase) for step, bpb, phase in drawn]
    pruning = to_prune(every, keep_best)
    kept, gone = {m.label for m in pruning.kept}, {m.label for m in pruning.checkpoints}
    assert kept | gone == {m.label for m in every}
    assert not kept & gone
    for phase in {m.phase for m in every}:
        mine = [m for m in every if m.phase == phase]
        best, latest = pick_best(mine), pick_latest(mine)
        assert present(latest).label in kept
        assert best is None or best.label in kept
        assert sum(m.phase == phase for m in pruning.kept) <= max(1, keep_best) + 1
    overall = pick_best(every)
    assert overall is None or overall.label in kept


# -- saved, and not evaluated yet --------------------------------------------------------------


def test_one_without_a_metric_is_the_latest_and_never_the_best() -> None:
    row = [manifest(1, 2.0), manifest(2, 1.5), manifest(3, None)]
    assert pick_best(row) == row[1]
    assert pick_latest(row) == row[2]
    assert to_prune(row, keep_best=1).checkpoints == (row[0],)
    assert to_prune([*row, manifest(4, 3.0)], keep_best=1).checkpoints == (row[0], row[2])


def test_a_metric_is_added_once() -> None:
    scored = with_metric(manifest(3, None, step_losses=()), 1.25, [3.0, 2.0])
    assert scored == manifest(3, 1.25, step_losses=(3.0, 2.0))
    assert with_metric(scored, 9.0, [9.0]) == scored
    assert from_json(to_json(scored), "here") == scored


def test_a_copy_takes_its_metric_from_a_copy_of_the_very_same_weights() -> None:
    here = [manifest(2, 1.5), manifest(3, None), manifest(4, None)]
    other = replace(manifest(4, 1.0), files=(replace(WEIGHTS, sha256="ff" * 32), STATE))
    found = with_metrics(here, [manifest(2, 0.1), manifest(3, 1.25), other])
    assert found == (manifest(2, 1.5), manifest(3, 1.25), manifest(4, None))
    assert pick_best(found) == found[1]


# -- before a cooldown ---------------------------------------------------------------------------


def test_what_was_saved_before_the_latest_ones_cooldown_stays() -> None:
    row = [manifest(20, 3.0), manifest(40, None), manifest(60, 2.0), manifest(80, 1.0)]
    cooled = [replace(m, cooldown_from=40) if m.step > 40 else m for m in row]
    assert {m.step for m in to_prune(row, keep_best=1).kept} == {80}
    assert {m.step for m in to_prune(cooled, keep_best=1).kept} == {40, 80}
    assert {m.step for m in to_prune(cooled[1:3], keep_best=1).kept} == {40, 60}
    assert is_before_cooldown(cooled[1], cooled[3])
    assert is_before_cooldown(cooled[1].ref, cooled[3].ref)
    assert not is_before_cooldown(cooled[2], cooled[3])
    assert not is_before_cooldown(cooled[1], None)
    other = manifest(40, None, "extreme")
    assert not is_before_cooldown(other, cooled[3])
    own = replace(cooled[3], cooldown_from=80)
    assert not is_before_cooldown(own, own), "as nobody but a liar says"


def test_once_the_run_has_gone_on_from_it_it_may_go() -> None:
    row = [manifest(40, None), manifest(80, 1.0, cooldown_from=40), manifest(100, 2.0)]
    assert {m.step for m in to_prune(row, keep_best=1).kept} == {80, 100}
    again = [*row, manifest(120, None), manifest(140, 1.5, cooldown_from=120)]
    assert {m.step for m in to_prune(again, keep_best=1).kept} == {80, 120, 140}


def test_a_cooldown_is_read_as_it_was_written_and_older_manifests_know_of_none() -> None:
    made = manifest(80, cooldown_from=40)
    assert from_json(to_json(made), "here") == made
    before = json.loads(to_json(made))
    del before["cooldown_from"]
    assert from_json(json.dumps(before), "here") == replace(made, cooldown_from=None)
    for wrong in (-1, 1.5, "40", True, 10**9):
        with pytest.raises(CheckpointError):
            from_json(json.dumps({**before, "cooldown_from": wrong}), "here")


# -- A checkpoint in shards: what it is known by, and that it is whole --------------------------


HASHES = ("ab" * 32, "cd" * 32, "ef" * 32)
HASH_OF_TWO = "a84bba32fbb42c701494490a5328ad248737e9e8f63027f6311e20c6b8b958f2"
"""What sha256sum says of the first two, a line each."""


def shards(number: int, kind: str = "weights") -> tuple[CheckpointFile, ...]:
    return tuple(
        CheckpointFile(shard_name(kind, n, number), kind, 1000, sha256)
        for n, sha256 in enumerate(HASHES[:number], 1)
    )


def in_shards(number: int) -> CheckpointManifest:
    return manifest(files=(*reversed(shards(number)), STATE))


def test_a_single_file_of_weights_is_no_shard_unless_its_name_says_so() -> None:
    assert manifest().is_sharded is False
    assert [in_shards(number).is_sharded for number in (1, 2, 3)] == [True, True, True]


def test_shards_are_known_by_their_hashes_in_the_order_of_their_names() -> None:
    assert in_shards(2).sha256 == HASH_OF_TWO
    assert in_shards(1).sha256 == HASHES[0]
    assert manifest(files=(STATE, *shards(2))).sha256 == HASH_OF_TWO


def test_what_was_put_together_is_known_by_its_shards_too() -> None:
    gathered = manifest(extra={GATHERED: HASH_OF_TWO})
    assert gathered.sha256s == {WEIGHTS.sha256, HASH_OF_TWO}
    assert manifest().sha256s == {WEIGHTS.sha256}


@pytest.mark.parametrize("kind", ["weights", "optimizer"])
@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_kind_that_comes_in_shards_comes_with_every_one(kind: str, missing: int) -> None:
    mine = shards(3, kind)
    others = () if kind == "weights" else (WEIGHTS,)
    whole = manifest(files=(*mine, *others))
    assert from_json(to_json(whole), "x") == whole
    cut = replace(whole, files=(*mine[:missing], *mine[missing + 1 :], *others))
    with pytest.raises(CheckpointError, match=f"exactly one {kind} file, nor every shard"):
        from_json(to_json(cut), "x")


def test_only_a_commands_checkpoint_may_hold_what_nobody_here_opens() -> None:
    files = (WEIGHTS, replace(STATE, name="model.bin"))
    with pytest.raises(CheckpointError, match="no known format"):
        from_json(to_json(manifest(files=files)), "x")
    of_a_command = manifest(files=files, recipe=RECIPE)
    assert from_json(to_json(of_a_command), "x") == of_a_command


WHOLE = whole_name("weights")


def named(*numbers: int, among: int, kind: str = "weights") -> list[str]:
    return [shard_name(kind, number, among) for number in numbers]


@pytest.mark.parametrize(
    ("names", "whole"),
    [
        ([WHOLE], True),
        ([], False),
        (named(1, among=1), True),
        (named(1, among=2), False),
        (named(1, among=1, kind="optimizer"), False),
        (named(2, 1, 3, among=3), True),
        (named(1, 3, among=3), False),
        (named(1, 2, 3, 3, among=3), False),
        (named(1, among=2) + named(2, among=2, kind="optimizer"), False),
        ([WHOLE, *named(1, among=1)], False),
        ([*named(1, among=1), WHOLE], False),
        (named(*range(1, 1025), among=1024), True),
        (named(*range(1, 1026), among=1025), False),
    ],
)
def test_files_of_a_kind_are_the_whole_one_or_every_shard(names: list[str], whole: bool) -> None:
    assert is_complete(names, "weights") is whole
    assert WHOLE == "weights.safetensors"


@pytest.mark.parametrize(
    ("told", "final_at", "trained_to"),
    [(0, 0, 0), (119, 119, 119), (120, 120, 120)]
    + [(other, None, 120) for other in (None, 121, -1, True, "7", 7.0)],
)
def test_a_final_model_is_of_the_step_that_it_tells_where_that_can_be(
    told: Any, final_at: int | None, trained_to: int
) -> None:
    made = manifest(120, extra={FINAL_AT: told})
    assert (made.final_at, made.trained_to) == (final_at, trained_to)


def test_an_archive_of_files_stays_whatever_else_goes() -> None:
    archive = manifest(10, None, created_at=OUTPUTS_AT, extra={LAYOUT: OUTPUTS})
    made = [archive, manifest(20, 1.0), manifest(30, 2.0), manifest(40, 3.0)]
    assert [each.is_output for each in made] == [True, False, False, False]
    assert archive.ref.is_output
    assert [gone.step for gone in to_prune(made, 1).checkpoints] == [30]
    assert pick_latest(made) == made[-1]
    scored = replace(archive, val_bpb=0.5)
    assert to_prune([scored], 1).kept == (scored,), "once"


# -- a script's own best ------------------------------------------------------------------------


def own(step: int, bpb: float | None = None) -> CheckpointManifest:
    return manifest(step, bpb, extra={NAMED_BEST: "weights/best.pt"})


def test_a_scripts_own_best_stays_beside_its_last_where_no_metric_judges_them() -> None:
    row = [own(1), manifest(2, None), own(3), manifest(4, None), manifest(5, None)]
    assert own_bests(row) == [row[2], row[4]]
    assert {m.step for m in to_prune(row, keep_best=1).kept} == {3, 5}
    assert {m.step for m in to_prune(row, keep_best=2).kept} == {1, 3, 5}
    assert own_bests([m.ref for m in row]) == [row[2].ref, row[4].ref]
    assert best_of(row) == row[2]
    scored = manifest(6, 9.0)
    assert best_of([*row, scored]) == scored, "by its metric, where one has it"
    written_last = [*row, own(6)]
    assert {m.step for m in to_prune(written_last, keep_best=1).kept} == {5, 6}
    archive = manifest(7, None, created_at=OUTPUTS_AT, extra={LAYOUT: OUTPUTS})
    assert own_bests([*row, archive]) == [row[2], row[4]], "an archive is no last one"


def test_a_scripts_own_best_with_a_metric_competes_by_it() -> None:
    row = [manifest(1, 1.0), own(2, 2.0), manifest(3, 3.0)]
    assert own_bests(row) == []
    assert {m.step for m in to_prune(row, keep_best=1).kept} == {1, 3}
    room = [own(1), manifest(2, 1.0), own(3), manifest(4, None)]
    assert {m.step for m in to_prune(room, keep_best=2).kept} == {2, 3, 4}, "a metric has its place"
    assert {m.step for m in to_prune(room, keep_best=3).kept} == {1, 2, 3, 4}
    unknown = [manifest(1, 1.0), own(2), manifest(3, 3.0)]
    assert {m.step for m in to_prune(unknown, keep_best=1).kept} == {1, 2, 3}


def _own(
    step: int, value: float | None, by: str = "state", other: float | None = None, **changes: Any
) -> CheckpointManifest:
    """A command's checkpoint whose metric, of which more is better, was found in this way."""
    told = {"name": "acc", "value": value, "by": by}
    told |= {} if other is None else {"other": other}
    extra = {} if value is None else {METRIC: told}
    score = None if value is None else -value
    files = (replace(WEIGHTS, sha256=f"{step:064x}"), STATE)
    made = manifest(step, score, recipe="command", extra=extra, files=files, step_losses=())
    return replace(made, **changes)


@pytest.mark.parametrize(
    ("every", "rivals"),
    [
        ([_own(1, 0.5), _own(2, 0.4)], []),
        ([_own(1, 0.5), _own(2, 0.4, "order"), _own(3, None)], []),
        ([_own(1, 0.5, "order"), _own(2, 0.4), _own(3, 0.3), _own(4, None)], [2, 3]),
        ([_own(1, 0.5, "time"), _own(2, None), _own(3, None)], [3, 2]),
        ([_own(1, 0.5), _own(2, 0.4, "unsure", other=0.6)], [2]),
        ([_own(1, 0.5), _own(2, 0.4, "unsure", other=0.45)], []),
        ([_own(1, 0.5, "order")], []),
        ([_own(1, 0.5, "order"), _own(2, 0.4, phase="extreme")], []),
        ([_own(1, 0.5, "order"), _own(2, 0.4, extra={BEGUN_AT: 5.0})], []),
        ([_own(1, 0.5, "order"), _own(2, None, extra={LAYOUT: OUTPUTS})], []),
        ([manifest(1, 1.5), manifest(2, 1.6)], []),
    ],
)
def test_where_the_best_is_a_guess_others_may_be_better(
    every: list[CheckpointManifest], rivals: list[int]
) -> None:
    best = present(pick_best(m for m in every if m.phase == every[0].phase))
    if best.step != 1:
        best = every[0]
    assert [m.step for m in rivals_of(best, every)] == rivals


def test_of_equal_values_the_one_that_is_known_is_the_best() -> None:
    every = [_own(1, 0.5, "epoch"), _own(2, 0.5, "time")]
    assert present(pick_best(every)).step == 1
    assert rivals_of(every[0], every) == []


def test_a_checkpoint_without_a_metric_has_no_rivals() -> None:
    assert rivals_of(_own(1, None), [_own(1, None), _own(2, 0.5, "order")]) == []


def test_a_copy_without_its_metric_learns_how_that_was_found() -> None:
    bare = _own(1, None)
    (found,) = with_metrics([bare], [_own(1, 0.5, "order")])
    assert (found.val_bpb, found.own_metric, found.is_sure) == (-0.5, ("acc", 0.5), False)
