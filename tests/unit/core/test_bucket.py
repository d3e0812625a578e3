"""Where files are in a bucket, what must be there, what is never written over, and how its names
and records are read."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trmcloud.core.contract import bucket as bk
from trmcloud.core.contract.bucket_layout import (
    MAX_PUT_BYTES,
    MOST_FILE_BYTES,
    Place,
    is_oversized,
    is_slot,
    parse_place,
    piece_sizes,
    pieces_of,
    puts_in_slot,
    slots_of,
)
from trmcloud.core.contract.command_objects import (
    command_file_name,
    granted_bytes_of_command,
    puts_of_command,
    why_not_in_bucket,
)
from trmcloud.core.contract.manifest import MAX_MANIFEST_BYTES, CheckpointManifest, shard_name
from trmcloud.core.contract.pod_contract import CheckpointRef
from trmcloud.core.contract.records import MAX_JSON_BYTES, ContractError
from trmcloud.core.errors import UsageError
from trmcloud.operations.checkpoints.bucket_grants import latest_resumable
from trmcloud.sim.world.store import make_manifest

# -- Where things lie in a bucket, what must be there, and what is never written over -----------


def kept(step: int, bpb: float | None, cooldown_from: int | None = None) -> CheckpointRef:
    return CheckpointRef("fast", step, f"{step:064x}", 10, bpb, cooldown_from)


def manifest(phase: str, step: int) -> CheckpointManifest:
    return make_manifest("r1", phase, step, 1000.0 + step, 1.0, 0)


@pytest.mark.parametrize(
    ("text", "bucket", "prefix"),
    [
        ("s3://abc", "abc", ""),
        ("s3://abc/", "abc", ""),
        ("s3://a-b.c//x//y//", "a-b.c", "x/y"),
        ("s3://abc/a/b/c/d/e/f/g/h/i/j/k/l", "abc", "a/b/c/d/e/f/g/h/i/j/k/l"),
    ],
)
def test_a_place_is_read(text: str, bucket: str, prefix: str) -> None:
    assert parse_place(text) == Place(bucket, prefix)


@pytest.mark.parametrize(
    "text",
    ["", "abc", "bucket/a", "s3://", "s3://a", "s3://abc/../x", "s3://abc/a/..", "s3://abc/a b",
     "s3://abc/a/b/c/d/e/f/g/h/i/j/k/l/m"],
)  # fmt: skip
def test_what_names_no_bucket_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a bucket"):
        parse_place(text)


LARGEST = MOST_FILE_BYTES


@given(st.integers(0, LARGEST), st.integers(0, LARGEST))
def test_pieces_cover_a_file_without_overlap_and_are_all_granted(one: int, other: int) -> None:
    size, most = sorted((one, other))
    pieces = pieces_of("weights.safetensors", size)
    assert pieces[0].start == 0
    assert pieces[-1].end == size
    assert all(a.end == b.start for a, b in itertools.pairwise(pieces))
    assert {(piece.name, piece.length) for piece in pieces} <= set(puts_in_slot(most))
    assert max(piece.end - piece.start for piece in pieces) <= MAX_PUT_BYTES
    for piece in pieces:
        path, length = f"fast/g1-slot-0/{piece.name}", piece.end - piece.start
        assert not is_oversized(path, length, {"fast": most})


@given(st.integers(1, 16), st.integers(0, LARGEST))
def test_every_shard_of_an_even_share_may_be_stored(count: int, most: int) -> None:
    granted = set(puts_in_slot(most, count))
    for kind in ("weights", "optimizer"):
        for number in {1, count}:
            pieces = pieces_of(shard_name(kind, number, count), most // count)
            assert {(piece.name, piece.length) for piece in pieces} <= granted
            for piece in pieces:
                path, length = f"fast/g1-slot-0/{piece.name}", piece.end - piece.start
                assert not is_oversized(path, length, {"fast": most})
    assert set(puts_in_slot(most)) <= granted, "a run that goes on alone saves whole files"
    other = shard_name("weights", count + 1, count + 1)
    assert not any(name.startswith(other) for name, _ in granted)


@given(st.lists(st.integers(0, 20_000_000_000), min_size=1, max_size=20), st.integers(0, 10**10))
def test_every_file_of_a_commands_checkpoint_may_be_stored(sizes: list[int], more: int) -> None:
    most = sum(sizes) + more
    granted = set(puts_of_command(most))
    for number, size in enumerate(sorted(sizes, reverse=True), 1):
        pieces = pieces_of(command_file_name(number), size)
        assert {(piece.name, piece.length) for piece in pieces} <= granted
        for piece in pieces:
            path, length = f"train/g1-slot-0/{piece.name}", piece.end - piece.start
            assert not is_oversized(path, length, {"train": most})
    assert {("tree.json", None), ("manifest.json", None)} <= granted


@pytest.mark.parametrize("gigabytes", [0.01, 2, 16, 40, 68])
@pytest.mark.parametrize("keep_best", [1, 2, 3])
def test_grants_of_a_commands_large_checkpoints_can_be_given(
    gigabytes: float, keep_best: int
) -> None:
    reserved = int(gigabytes * 1e9)
    assert why_not_in_bucket(reserved, keep_best) == ""
    granted = granted_bytes_of_command(reserved)
    assert granted >= reserved
    count = len(puts_of_command(granted)) * len(slots_of(1, keep_best))
    assert count * 2000 < bk.MAX_GRANTS_BYTES, "each of 2 kB, a session's token in it"
    pieces_of(command_file_name(1), reserved)  # one file of that size can be cut


def test_what_no_grants_cover_is_said_before_renting() -> None:
    assert "files of up to 69 GB, but a checkpoint may have a file of 100 GB" in why_not_in_bucket(
        10**11, 2
    )
    assert "20 kept checkpoints of 60 GB need" in why_not_in_bucket(60 * 10**9, 20)


def test_every_full_piece_has_a_length_that_is_known_beforehand() -> None:
    mib = 1 << 20
    assert [p.length for p in pieces_of("w", 64 * mib)] == [None]
    assert [p.length for p in pieces_of("w", 64 * mib + 1)] == [64 * mib, None]
    assert [p.length for p in pieces_of("w", 128 * mib)] == [64 * mib] * 2
    assert [p.length for p in pieces_of("w", 1088 * mib - 1)] == [64 * mib] * 16 + [None]
    assert [p.length for p in pieces_of("w", 1088 * mib)] == [128 * mib] * 8 + [None]
    assert piece_sizes(0) == piece_sizes(1024 * mib) == (64 * mib,)
    assert piece_sizes(1088 * mib) == (64 * mib, 128 * mib)
    assert piece_sizes(LARGEST)[-1] == 4 << 30


def test_a_file_beyond_all_pieces_is_refused() -> None:
    with pytest.raises(ValueError, match="larger"):
        pieces_of("weights.safetensors", 17 * (4 << 30))


@given(
    st.lists(st.none() | st.floats(0.5, 3.0), min_size=1, max_size=30),
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9)), max_size=3),
)
def test_no_slot_that_is_needed_is_ever_written_to(
    scores: list[float | None], best: int, cooldowns: list[tuple[int, int]]
) -> None:
    slots: dict[str, CheckpointRef | None] = dict.fromkeys(slots_of(1, best))
    for step, bpb in enumerate(scores):
        slot = bk.free_slot(slots, best)
        gone = slots[slot]
        there = [k for k in slots.values() if k is not None]
        if gone is not None:
            assert gone not in bk.worth_saving(there)
        began = [first for first, length in cooldowns if first < step <= first + length]
        slots[slot] = kept(step, bpb, max(began, default=None))


def test_a_later_pod_has_slots_of_its_own() -> None:
    """An earlier one's grants may still be good while it saves."""
    assert not set(slots_of(1, 4)) & set(slots_of(2, 4))
    assert all(is_slot(name) for name in slots_of(2, 4))


def test_an_unjudged_archive_is_stored_after_the_checkpoints_and_takes_no_slot_of_theirs() -> None:
    made = [kept(10, 1.0), kept(20, 2.0), replace(kept(21, None), is_output=True)]
    assert bk.worth_saving(made) == tuple(made)
    assert bk.unstored(made, made[:2]) == (made[2],)
    early = replace(made[2], step=0)
    assert bk.unstored((early, *made[:2]), ()) == (*made[:2], early), "whatever its number"
    assert bk.unstored((early,), ()) == (early,)
    held = dict(zip("abcd", [kept(5, 1.5), *made], strict=True))
    assert bk.free_slot(held, 1) == "a", "neither the best nor the latest checkpoint"
    held["a"] = kept(15, 0.5)
    assert bk.free_slot(held, 1) == "b"


def test_best_and_latest_of_each_phase_are_worth_saving() -> None:
    made = [kept(1, 1.0), kept(2, None), kept(3, 2.0)]
    assert bk.worth_saving(made) == (made[0], made[2])
    assert bk.unstored(made, made[:1]) == (made[2],)
    assert bk.unstored(made, made[:1], made[2:]) == (made[1],), "the latest of what is sound"
    assert bk.unstored(made, (), made[:1]) == (made[2],)


def test_what_was_saved_before_the_latest_ones_cooldown_is_worth_saving() -> None:
    before, between, latest = kept(2, None), kept(3, 1.5, 2), kept(4, 2.0, 2)
    made = [kept(1, 1.0), before, between, latest]
    assert bk.worth_saving(made) == (made[0], latest, before)
    assert bk.unstored(made, [made[0], latest]) == (before,)
    assert bk.unstored(made, [made[0], latest], [before]) == ()
    assert bk.unstored(made, made[:1], [latest]) == (between, before), "the same, of what is sound"
    assert bk.worth_saving([*made, kept(5, 3.0)]) == (made[0], kept(5, 3.0)), "topped up since"
    scored = replace(before, val_bpb=9.0)
    assert scored in bk.unstored([scored, latest], [kept(1, 1.0)]), "though others are better"
    slots = {"a": kept(1, 1.0), "b": before, "c": between, "d": latest}
    assert bk.free_slot(slots, 1) == "c"
    twice = {"a": before, "b": replace(before, sha256="f" * 64), "c": latest, "d": kept(1, 1.0)}
    assert bk.free_slot(twice, 1) == "a", "trained again by a pod that had lost its disk"


def test_a_best_one_is_not_owed_where_the_bucket_has_one_as_good() -> None:
    """A pod without its disk trains the same again; of one that is damaged nothing is to be had."""
    again = [kept(5, 1.5), kept(6, 2.0)]
    assert bk.unstored(again, [kept(2, 1.5)]) == (again[1],)
    assert bk.unstored(again, [kept(2, 1.6)]) == tuple(again)
    assert bk.unstored(again, [kept(2, None)]) == tuple(again)
    other = replace(kept(2, 1.0), phase="extreme")
    assert bk.unstored(again, [other]) == tuple(again)
    assert bk.unstored(again, [], [kept(2, 1.0)]) == tuple(again)


scores = st.lists(st.none() | st.sampled_from((0.5, 1.0, 1.5, 2.0)), min_size=1, max_size=6)


@given(scores, scores, st.integers(1, 3))
def test_uploads_do_end(before: list[float | None], here: list[float | None], best: int) -> None:
    """Whatever an earlier life of the pod has left in its slots."""
    slots: dict[str, CheckpointRef | None] = dict.fromkeys(slots_of(1, best))
    for name, (step, bpb) in zip(slots, enumerate(before, 10), strict=False):
        slots[name] = kept(step, bpb)
    mine = [kept(step, bpb) for step, bpb in enumerate(here, 1)]
    for _ in range(4):
        owed = bk.unstored(mine, [k for k in slots.values() if k is not None])
        if not owed:
            return
        slots[bk.free_slot(slots, best)] = owed[0]
    raise AssertionError("the same checkpoints are stored again and again")


def test_a_new_pod_is_given_the_furthest_and_the_one_before() -> None:
    made = [manifest("fast", step) for step in (3, 9, 6)]
    bare = replace(manifest("fast", 12), files=manifest("fast", 12).files[:1])
    other = manifest("extreme", 1)
    found = latest_resumable([*made, bare, other])
    assert [(m.phase, m.step) for m in found] == [("fast", 9), ("fast", 6), ("extreme", 1)]
    own = [replace(m, recipe="command") for m in (bare, *made)]
    rest = replace(own[0], step=13, extra={"layout": "outputs"})
    assert [m.step for m in latest_resumable([*own, rest])] == [12, 9], "as a command saves them"
    anew = replace(manifest("fast", 9), created_at=5e9)
    assert latest_resumable([*made, anew])[0] == anew
    assert len(latest_resumable([*made, anew])) == 2


def test_a_new_pod_is_given_what_was_saved_before_the_cooldown_too() -> None:
    made = [manifest("fast", step) for step in (3, 6, 9, 12)]
    cooled = [*made[:2], *(replace(each, cooldown_from=3) for each in made[2:])]
    assert [m.step for m in latest_resumable(cooled)] == [12, 9, 3]
    assert [m.step for m in latest_resumable(cooled[:3])] == [9, 6, 3]
    bare = replace(cooled[0], files=cooled[0].files[:1])
    assert [m.step for m in latest_resumable([bare, *cooled[1:]])] == [12, 9]
    assert [m.step for m in latest_resumable([*cooled, manifest("fast", 15)])] == [15, 12]


def test_grants_are_read_as_they_were_written_and_lead_nowhere_else() -> None:
    share = bk.PhaseSlots(1, ("g1-slot-0",), {"g1-slot-0": kept(1, 1.0)})
    file = bk.FileGet("a/b.bin", 1, "0" * 64, ("http://x",))
    grants = bk.Grants("p", 5.0, {"fast": share}, {"k": "u"}, (bk.FolderGet("/x", (file,)),))
    grants = replace(grants, report="http://y")
    assert bk.load_grants(bk.dump_grants(grants)) == grants
    before = json.loads(bk.dump_grants(grants))
    del before["report"]
    assert bk.load_grants(json.dumps(before)) == replace(grants, report="")
    for text in ("", "[]", "{}", bk.dump_grants(grants).replace("a/b.bin", "../b.bin")):
        with pytest.raises(ContractError):
            bk.load_grants(text)


def test_what_was_stored_before_it_was_evaluated_is_owed_for_its_manifest_alone() -> None:
    early, scored = kept(3, None), kept(3, 1.0)
    assert bk.unstored([early], [early]) == ()
    assert bk.unstored([scored], [early]) == (scored,)
    assert bk.unstored([scored], [scored]) == bk.unstored([early], [scored]) == ()
    assert bk.unstored([scored], [], [early]) == (), "damaged is damaged"
    slots = {"a": kept(2, None), "b": None, "c": early}
    assert bk.lacks_metric(slots, scored) == "c"
    assert bk.lacks_metric(slots, early) is None
    assert bk.lacks_metric({"c": scored}, scored) is None
    assert bk.lacks_metric({"c": replace(early, sha256="ff" * 32)}, scored) is None


@given(scores, st.integers(1, 3))
def test_later_metrics_find_the_same_slots(metrics: list[float | None], best: int) -> None:
    """Each is stored as it is saved, and its manifest again once it is evaluated."""
    slots: dict[str, CheckpointRef | None] = dict.fromkeys(slots_of(1, best))
    mine: list[CheckpointRef] = []
    for step, bpb in enumerate(metrics, 1):
        for made in (kept(step, None), kept(step, bpb)):
            mine = [k for k in mine if k.step != step] + [made]
            for owed in bk.unstored(mine, [k for k in slots.values() if k is not None]):
                slots[bk.lacks_metric(slots, owed) or bk.free_slot(slots, best)] = owed
            there = [k for k in slots.values() if k is not None]
            assert bk.unstored(mine, there) == ()
            assert len({k.step for k in there}) == len(there), "no slot holds it a second time"


# -- What is read of a bucket's names and records: grants, uploads, places, sizes ---------------


SHA256 = "0" * 64
FILE = {"name": "a/b.bin", "size_bytes": 5, "sha256": SHA256, "urls": ["https://x"]}


def grants(**changes: Any) -> bk.Grants:
    data: dict[str, Any] = {
        "pod_name": "trmc-x", "until": 5.0, "phases": {}, "puts": {}, "version": 1, **changes,
    }  # fmt: skip
    return bk.load_grants(json.dumps(data))


def folder(path: str = "/data", *files: dict[str, Any]) -> dict[str, Any]:
    return {"folder": path, "files": [*files]}


def cache(path: str = "/cache", *files: dict[str, Any]) -> dict[str, Any]:
    return {"folder": path, "gets": [*files], "held": [], "puts": {}, "index": "https://x"}


def test_grants_may_lead_into_their_folders() -> None:
    made = grants(gets=[folder("/data", FILE)], cache=cache("/cache", FILE))
    assert made.gets[0].files[0].name == "a/b.bin"
    assert made.gets[0].needed is True
    assert made.cache is not None
    assert (grants().gets, grants().report, grants().cache) == ((), "", None)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/../b", "a//b", "/etc/passwd", "a/", "a\0b", "a/./b"]
)
def test_a_name_that_leads_elsewhere_is_refused(name: str) -> None:
    bad = {**FILE, "name": name}
    for change in (
        {"gets": [folder("/data", FILE, bad)]},
        {"gets": [folder("/data", FILE), folder("/more", bad)]},
        {"cache": cache("/cache", FILE, bad)},
    ):
        with pytest.raises(ContractError, match="leads elsewhere"):
            grants(**change)


@pytest.mark.parametrize("path", ["", "data", "./data", "~/data"])
def test_a_folder_that_is_no_absolute_path_is_refused(path: str) -> None:
    for change in ({"gets": [folder(path)]}, {"cache": cache(path)}):
        with pytest.raises(ContractError, match="leads elsewhere"):
            grants(**change)


def test_grants_have_bounds_of_their_own() -> None:
    many = {f"fast/g1-slot-0/{n}": "https://x" for n in range(65_536)}
    assert len(grants(puts=many).puts) == 65_536
    with pytest.raises(ContractError, match="longer than any real one"):
        grants(puts={**many, "one": "more"})
    with pytest.raises(ContractError, match="larger than any real one"):
        bk.load_grants(" " * (bk.MAX_GRANTS_BYTES + 1))
    with pytest.raises(ContractError, match="no JSON"):
        bk.load_grants(" " * bk.MAX_GRANTS_BYTES)


def test_uploads_are_read_and_their_trouble_is_cut() -> None:
    read = bk.load_uploads(json.dumps({"trouble": "x" * 201, "fetched": True}))
    assert read == bk.Uploads(trouble="x" * 200, fetched=True)
    assert bk.load_uploads('{"trouble": "why"}').trouble == "why"
    with pytest.raises(ContractError):
        bk.load_uploads('{"fetched": "yes"}')


@pytest.mark.parametrize(
    ("name", "slot"),
    [("g1-slot-0", True), ("g1-slot-0x", False), ("g12345-slot-0", False), ("slot-0", False)],
)
def test_what_is_a_slot(name: str, slot: bool) -> None:
    assert is_slot(name) is slot


PIECE = 64 << 20


@pytest.mark.parametrize(
    ("path", "most"),
    [
        ("g1-report.json", MAX_JSON_BYTES),
        ("fast/g1-slot-0/manifest.json", MAX_MANIFEST_BYTES),
        ("fast/g1-slot-0/state.json", PIECE),
        ("fast/g1-slot-0/weights.safetensors", 2 * PIECE),
        ("fast/g1-slot-0/weights.safetensors.part-00000", 2 * PIECE),
        ("fast/g1-slot-0/state.json.part-00000", 2 * PIECE),
        ("fast/g1-slot-0/tokenizer.json", PIECE),
        ("fast/g12-slot-3/weights-00002-of-00008.safetensors", 2 * PIECE),
        ("extreme/g1-slot-0/weights.safetensors", 4096 << 20),
    ],
)
def test_each_object_has_a_most(path: str, most: int) -> None:
    """Files of up to 32 pieces in ``fast``: twice as large; of the other nothing is known."""
    sizes = {"fast": 32 * PIECE}
    assert not is_oversized(path, most, sizes)
    assert is_oversized(path, most + 1, sizes)


@pytest.mark.parametrize(
    "path",
    ["", "fast", "fast/g1-slot-0", "fast/g1-slot-0/other.bin", "fast/slot-0/state.json",
     "fast/g1-slot-0/state.json/x", "owner.json", "report.json", "x/g1-report.json",
     "fast/notes/weights.safetensors", "fast/g1-slot-0/"],
)  # fmt: skip
def test_what_no_pod_is_granted_has_none(path: str) -> None:
    assert not is_oversized(path, 1 << 50, {})


def test_a_scripts_own_best_without_a_metric_is_worth_saving_and_leaves_a_slot_free() -> None:
    older, own = (replace(kept(step, None), is_named_best=True) for step in (1, 3))
    last = kept(4, None)
    assert bk.worth_saving([older, kept(2, None), own, last]) == (own, last)
    slots = {"a": kept(1, 1.0), "b": own, "c": kept(2, 2.0), "d": last}
    assert bk.free_slot(slots, 1) == "c"
    newest = replace(kept(5, None), is_named_best=True)
    assert bk.worth_saving([own, last, newest]) == (newest, last), "the last stays as well"
