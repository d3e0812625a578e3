"""A command's files become checkpoints of ours: watched, copied, named, pruned, restored."""

from __future__ import annotations

import json
import os
import pickle
import zipfile
from itertools import count
from pathlib import Path

import pytest

from trmcloud.core.contract.command import Command
from trmcloud.core.contract.manifest import MANIFEST_NAME, pick_best
from trmcloud.core.errors import CheckpointError
from trmcloud.pod.job import shelf as shelves
from trmcloud.pod.job.shelf import Shelf, restore
from trmcloud.pod.job.watch import Candidate, Refused, Watcher, what_opening_does

COMMAND = Command(("x",), metric="acc", higher_is_better=True, keep_best=1)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work" / "out").mkdir(parents=True)
    return tmp_path / "work"


def shelf_at(tmp_path: Path) -> Shelf:
    ticks = count(1_800_000_000)
    return Shelf(tmp_path / "checkpoints", "r-1", "train", COMMAND, lambda: float(next(ticks)))


def seen(work: Path, name: str) -> Candidate:
    found = Watcher(work, "out", 10**9).look(name)
    assert found is not None
    return found


def settled(watcher: Watcher, now: float) -> list[str]:
    return [
        found.source if isinstance(found, Candidate) else f"{found[0]}: {found[1]}"
        for found in watcher.settled(now, 2.0)
    ]


def test_what_has_stopped_changing_is_handed_out_once(work: Path) -> None:
    watcher = Watcher(work, "out", 10**9)
    (work / "out" / "model.pt").write_bytes(b"one")
    assert settled(watcher, 0.0) == []
    assert settled(watcher, 1.9) == []
    assert settled(watcher, 2.0) == ["out/model.pt"]
    watcher.done(seen(work, "out/model.pt"))
    assert settled(watcher, 9.0) == []
    (work / "out" / "model.pt").write_bytes(b"another")
    assert settled(watcher, 10.0) == []
    assert settled(watcher, 12.0) == ["out/model.pt"]


@pytest.mark.parametrize(
    ("checkpoints", "found"),
    [
        ("out", ["out/checkpoint-5", "out/model.pt"]),
        ("out/*.txt", ["out/notes.txt"]),
        ("out/model.pt", ["out/model.pt"]),
        ("nowhere", []),
        ("", []),
    ],
)
def test_which_files_may_be_checkpoints(work: Path, checkpoints: str, found: list[str]) -> None:
    for name in ("model.pt", "notes.txt", ".hidden.pt", "model.pt.tmp", "tmp-model.pt"):
        (work / "out" / name).write_bytes(b"x")
    for name in ("checkpoint-5", "runs", "tmp-checkpoint-6"):
        (work / "out" / name).mkdir()
        (work / "out" / name / "events").write_bytes(b"x")
    (work / "out" / "latest").symlink_to("checkpoint-5")
    watcher = Watcher(work, checkpoints, 10**9)
    settled(watcher, 0.0)
    assert settled(watcher, 5.0) == found


def test_the_best_by_a_metric_of_which_more_is_better_is_kept(tmp_path: Path, work: Path) -> None:
    shelf = shelf_at(tmp_path)
    for step, accuracy in ((10, 0.5), (20, 0.9), (30, 0.7), (40, 0.6)):
        (work / "out" / "model.pt").write_bytes(os.urandom(50))
        made = shelf.take(seen(work, "out/model.pt"), step, accuracy)
        assert made is not None
        assert made.extra["metric"] == {"name": "acc", "value": accuracy}
    assert [made.step for made in shelf.manifests()] == [20, 40], "the best, and the latest"
    best = pick_best(shelf.manifests())
    assert best is not None
    assert best.step == 20


def test_the_very_same_is_taken_once_and_a_step_never_twice(tmp_path: Path, work: Path) -> None:
    path = work / "out" / "model.pt"
    path.write_bytes(b"one")
    shelf = shelf_at(tmp_path)
    assert shelf.take(seen(work, "out/model.pt"), 5, None) is not None
    assert shelf.take(seen(work, "out/model.pt"), 5, None) is None
    assert shelf_at(tmp_path).take(seen(work, "out/model.pt"), 6, None) is None, "nor by another"
    path.write_bytes(b"two")
    made = shelf.take(seen(work, "out/model.pt"), 5, None)
    assert made is not None
    assert made.step == 6


def test_what_changes_under_the_copy_is_no_checkpoint(tmp_path: Path, work: Path) -> None:
    path = work / "out" / "model.pt"
    path.write_bytes(b"one")
    candidate = seen(work, "out/model.pt")
    path.write_bytes(b"grown since")
    shelf = shelf_at(tmp_path)
    with pytest.raises(Refused, match="changed while it was copied"):
        shelf.take(candidate, 5, None)
    path.unlink()
    path.symlink_to("/etc/passwd")
    with pytest.raises(Refused):
        shelf.take(candidate, 5, None)
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_half_a_file_of_a_known_format_is_none(tmp_path: Path, work: Path) -> None:
    whole = work / "out" / "model.pt"
    with zipfile.ZipFile(whole, "w") as archive:
        archive.writestr("data.pkl", b"x" * 1000)
    shelf = shelf_at(tmp_path)
    half = work / "out" / "half.pt"
    half.write_bytes(whole.read_bytes()[:500])
    with pytest.raises(Refused, match="its zip has no end"):
        shelf.take(seen(work, "out/half.pt"), 1, None)
    header = json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    tensors = len(header).to_bytes(8, "little") + header + bytes(16)
    for length, is_whole in ((len(tensors), True), (len(tensors) - 1, False), (4, False)):
        (work / "out" / "w.safetensors").write_bytes(tensors[:length])
        if is_whole:
            assert shelf.take(seen(work, "out/w.safetensors"), 2, None) is not None
        else:
            with pytest.raises(Refused, match="cut off"):
                shelf.take(seen(work, "out/w.safetensors"), 3, None)


def test_a_folder_is_restored_under_its_own_names(tmp_path: Path, work: Path) -> None:
    folder = work / "out" / "checkpoint-7"
    (folder / "deep").mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"m" * 9)
    (folder / "deep" / "State of it.bin").write_bytes(pickle.dumps({"a": 1}))
    shelf = shelf_at(tmp_path)
    with pytest.raises(Refused):
        shelf.take(seen(work, "out/checkpoint-7"), 7, None)  # 9 bytes are no safetensors
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    made = shelf.take(seen(work, "out/checkpoint-7"), 7, None)
    assert made is not None
    assert made.extra["opens"] == "code"
    assert [file.name for file in made.weights] == ["file-0001.bin"], "the largest"
    kept = tmp_path / "checkpoints" / "step-00000007"
    assert sorted(path.name for path in kept.iterdir()) == [
        *("file-0001.bin", "file-0002.bin"),
        *(MANIFEST_NAME, "tree.json"),
    ]
    back = shelf.restore(made, tmp_path / "back")
    assert back == tmp_path / "back" / "checkpoint-7"
    assert pickle.loads((back / "deep" / "State of it.bin").read_bytes()) == {"a": 1}


@pytest.mark.parametrize("path", ["../out", "/etc/x", "a/../../b", "", "a//b", "x\0"])
def test_names_that_lead_out_are_never_written(tmp_path: Path, work: Path, path: str) -> None:
    (work / "out" / "model.pt").write_bytes(b"one")
    shelf = shelf_at(tmp_path)
    made = shelf.take(seen(work, "out/model.pt"), 1, None)
    assert made is not None
    folder = tmp_path / "checkpoints" / "step-00000001"
    tree = json.loads((folder / "tree.json").read_text())
    tree["files"][0]["path"] = path
    (folder / "tree.json").write_text(json.dumps(tree))
    with pytest.raises(CheckpointError, match=r"tree\.json cannot be used"):
        restore(folder, made, tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_a_damaged_copy_is_not_restored(tmp_path: Path, work: Path) -> None:
    (work / "out" / "model.pt").write_bytes(b"one")
    made = shelf_at(tmp_path).take(seen(work, "out/model.pt"), 1, None)
    assert made is not None
    folder = tmp_path / "checkpoints" / "step-00000001"
    (folder / "file-0001.bin").write_bytes(b"two")
    with pytest.raises(CheckpointError, match="not what its manifest says"):
        restore(folder, made, tmp_path / "back")


def test_what_a_crash_left_is_cleared_away(tmp_path: Path) -> None:
    left = tmp_path / "checkpoints" / f"{shelves.MAKING}step-00000001-1"
    left.mkdir(parents=True)
    shelf_at(tmp_path)
    assert not left.exists()


def test_what_opening_a_file_does(tmp_path: Path) -> None:
    def of(name: str, content: bytes) -> str:
        (tmp_path / name).write_bytes(content)
        return what_opening_does(tmp_path / name)

    assert of("a.pt", pickle.dumps([1])) == "code"
    assert of("b.pt", b"PK\x03\x04rest") == "code"
    assert of("c.safetensors", b"anything") == "data"
    assert of("d.ckpt", b"anything") == "unknown"
    assert what_opening_does(tmp_path / "none") == "unknown"
