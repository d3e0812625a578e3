"""Checkpoints are whole or not there, and go from the first machine's disk to those that lack
it."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from model.machine.distributed import World
from model.training import checkpoint, resume
from model.training.checkpoint import (
    CheckpointFolder,
    Contents,
    FoundCheckpoint,
    read_manifest,
    read_tensors,
    read_text,
    verify,
)
from tests.checkpoints import a_manifest
from trmcloud.core.contract.manifest import CheckpointManifest
from trmcloud.core.errors import CheckpointError

# -- Checkpoints are whole or not there: kills, damage, a full disk, pruning --------------------


NAMES = ["weights.safetensors", "optimizer.safetensors", "state.json", "tokenizer.json"]


def contents(step: int) -> Contents:
    return Contents.of(
        weights={"w": torch.full((3, 3), float(step)), "v": torch.arange(4.0)},
        optimizer={"momentum.w": torch.ones(3, 3), "step.v": torch.tensor(float(step))},
        state={"step": step},
        tokenizer_json='{"t": 1}',
    )


def manifest(step: int, bpb: float | None = 2.0) -> CheckpointManifest:
    return a_manifest(step, bpb, step_losses=(3.0, 2.0))


@pytest.fixture
def folder(tmp_path: Path) -> CheckpointFolder:
    made = CheckpointFolder(tmp_path / "checkpoints")
    made.clean()
    return made


def save(folder: CheckpointFolder, step: int, bpb: float | None = 2.0) -> FoundCheckpoint:
    return folder.save(contents(step), manifest(step, bpb))


def latest(folder: CheckpointFolder) -> tuple[int | None, list[str]]:
    said: list[str] = []
    found = folder.latest_sound(said.append)
    return (found.manifest.step if found else None), said


def test_what_is_saved_comes_back(folder: CheckpointFolder) -> None:
    found = save(folder, 20)
    assert found.folder.name == "step-00000020"
    read = read_manifest(found.folder)
    assert read == found.manifest
    assert {file.name: file.kind for file in read.files} == dict(
        zip(NAMES, ("weights", "optimizer", "state", "tokenizer"), strict=True)
    )
    verify(found.folder, read)
    assert torch.equal(read_tensors(found.folder, read, "weights")["w"], torch.full((3, 3), 20.0))
    assert json.loads(read_text(found.folder, read, "state")) == {"step": 20}


def test_equal_weights_have_equal_hashes(folder: CheckpointFolder) -> None:
    first, second = save(folder, 1), folder.save(contents(1), manifest(2))
    assert first.manifest.sha256 == second.manifest.sha256
    assert save(folder, 3).manifest.sha256 != first.manifest.sha256


@pytest.mark.parametrize("after", [*NAMES, "manifest.json"])
def test_a_kill_after_any_file_leaves_no_checkpoint(
    folder: CheckpointFolder, monkeypatch: pytest.MonkeyPatch, after: str
) -> None:
    save(folder, 10)
    pid = os.fork()
    if pid == 0:  # the child dies without a chance to clean up, as kill -9 would have it
        real = checkpoint._write

        def die(path: Path, *rest: Any) -> Any:
            real(path, *rest)
            if path.name == after:
                os._exit(9)

        monkeypatch.setattr(checkpoint, "_write", die)
        save(folder, 20)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    assert [each.manifest.step for each in folder.complete()] == [10]
    assert latest(folder) == (10, [])
    assert len(list(folder.root.iterdir())) == 2, "the half-made one is still there"
    folder.clean()
    assert [entry.name for entry in folder.root.iterdir()] == ["step-00000010"]
    assert save(folder, 20).manifest.step == 20


def test_the_manifest_comes_last(folder: CheckpointFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    real = checkpoint._write

    def watch(path: Path, *rest: Any) -> Any:
        assert path.parent.name.startswith(".making-")
        written.append(path.name)
        return real(path, *rest)

    monkeypatch.setattr(checkpoint, "_write", watch)
    save(folder, 5)
    assert written == [*NAMES, "manifest.json"]


@pytest.mark.parametrize("fault", ["bit", "cut", "gone", "manifest", "link"])
def test_a_damaged_checkpoint_is_set_aside_for_the_one_before(
    folder: CheckpointFolder, fault: str, tmp_path: Path
) -> None:
    save(folder, 10)
    last = save(folder, 20).folder
    weights = last / "weights.safetensors"
    if fault == "bit":
        damaged = bytearray(weights.read_bytes())
        damaged[-1] ^= 1
        weights.write_bytes(bytes(damaged))
    elif fault == "cut":
        weights.write_bytes(weights.read_bytes()[:-1])
    elif fault == "gone":
        (last / "state.json").unlink()
    elif fault == "manifest":
        (last / "manifest.json").write_text("{")
    else:
        weights.rename(tmp_path / "elsewhere")
        weights.symlink_to(tmp_path / "elsewhere")
    step, said = latest(folder)
    assert step == 10
    assert len(said) == 1
    assert "step-00000020" in said[0]
    assert [each.manifest.step for each in folder.complete()] == [10]
    assert save(folder, 20).manifest.step == 20, "its place is free again"


def test_when_all_are_damaged_that_is_an_error(folder: CheckpointFolder) -> None:
    for step in (10, 20):
        (save(folder, step).folder / "state.json").unlink()
    with pytest.raises(CheckpointError, match="every checkpoint is damaged"):
        latest(folder)


def test_no_checkpoint_is_no_error(folder: CheckpointFolder) -> None:
    (folder.root / "step-00000030").mkdir()  # no manifest, no checkpoint
    assert latest(folder) == (None, [])


@pytest.mark.parametrize("at", NAMES)
def test_a_full_disk_leaves_earlier_checkpoints_as_they_were(
    folder: CheckpointFolder, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    before = save(folder, 10)
    real = checkpoint._write

    def full(path: Path, kind: str, content: Any) -> Any:
        if path.name == at:
            whole = content if isinstance(content, bytes) else b"".join(content)
            path.write_bytes(whole[: len(whole) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(path, kind, content)

    monkeypatch.setattr(checkpoint, "_write", full)
    with pytest.raises(OSError, match="No space left"):
        save(folder, 20)
    assert [entry.name for entry in folder.root.iterdir()] == ["step-00000010"]
    verify(before.folder, read_manifest(before.folder))


def test_what_a_pruning_that_was_killed_left_is_swept(folder: CheckpointFolder) -> None:
    """The manifest goes first; killed right after, the files without it are nobody's."""
    save(folder, 10)
    (save(folder, 20).folder / "manifest.json").unlink()
    folder.clean()
    assert [entry.name for entry in folder.root.iterdir()] == ["step-00000010"]


def test_pruning_keeps_the_best_and_the_latest(folder: CheckpointFolder) -> None:
    for step, bpb in ((10, 1.5), (20, 1.9), (30, 1.2), (40, None), (50, 1.8)):
        save(folder, step, bpb)
    assert sorted(folder.prune(keep_best=2)) == ["step-00000020", "step-00000040"]
    assert [each.manifest.step for each in folder.complete()] == [50, 30, 10]
    assert folder.prune(keep_best=2) == []


def test_only_the_kinds_asked_for_are_verified(folder: CheckpointFolder) -> None:
    found = save(folder, 10)
    (found.folder / "optimizer.safetensors").unlink()
    verify(found.folder, found.manifest, kinds=("weights", "tokenizer"))
    with pytest.raises(CheckpointError, match=r"optimizer.safetensors cannot be read"):
        verify(found.folder, found.manifest)


def test_a_folder_without_manifest_says_what_to_name(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        read_manifest(tmp_path)
    assert "checkpoints/step-" in caught.value.next_step


# -- A checkpoint goes from the first machine's disk to those that lack it ----------------------


class Meeting:
    """Where ranks that are threads meet: each brings something, and sees what all brought."""

    def __init__(self, size: int) -> None:
        self._brought: list[object] = [None] * size
        self._barrier = threading.Barrier(size, timeout=20)

    def all(self, rank: int, what: object) -> list[object]:
        self._brought[rank] = what
        self._barrier.wait()
        seen = list(self._brought)
        self._barrier.wait()
        return seen


class ThreadWorld(World):
    """A rank of a meeting in place of a process group. ``lie`` alters what a rank is told."""

    meeting: Meeting
    lie: bytes | None = None

    def largest(self, values: Sequence[int]) -> list[int]:
        seen = self.meeting.all(self.rank, list(values))
        return [max(column) for column in zip(*seen, strict=True)]

    def told(self, content: bytes) -> bytes:
        first = self.meeting.all(self.rank, content)[0]
        assert isinstance(first, bytes)
        return self.lie if self.lie is not None and first.startswith(b"{") else first


def ranks(machines: Sequence[int], lie: bytes | None = None) -> list[ThreadWorld]:
    """``machines``: how many ranks each has."""
    meeting = Meeting(sum(machines))
    made: list[ThreadWorld] = []
    for local in (n for count in machines for n in range(count)):
        world = ThreadWorld(len(made), sum(machines), torch.device("cpu"), None, local)
        object.__setattr__(world, "meeting", meeting)
        if made:
            object.__setattr__(world, "lie", lie)
        made.append(world)
    return made


def share_all(worlds: Sequence[ThreadWorld], folders: Sequence[Path]) -> list[BaseException]:
    errors: list[BaseException] = []

    def run(world: ThreadWorld, folder: Path) -> None:
        try:
            resume.share(folder, world)
        except BaseException as error:
            errors.append(error)
            world.meeting._barrier.abort()

    threads = [
        threading.Thread(target=run, args=pair) for pair in zip(worlds, folders, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return errors


@pytest.mark.parametrize("chunk", [7, 1 << 20])
def test_the_first_rank_of_each_machine_that_lacks_it_gets_it_whole(
    chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resume, "_CHUNK_BYTES", chunk)
    here = CheckpointFolder(tmp_path / "a").save(contents(5), manifest(5)).folder
    there = tmp_path / "b" / here.name
    there.mkdir(parents=True)
    (there / "half").write_text("no manifest: what a kill left")
    assert share_all(ranks([2, 2]), [here, here, there, there]) == []
    assert sorted(path.name for path in there.iterdir()) == sorted([*NAMES, "manifest.json"])
    verify(there, read_manifest(there))
    assert [path.name for path in there.parent.iterdir()] == [here.name]


def test_nothing_is_sent_where_all_can_read_it(tmp_path: Path) -> None:
    here = CheckpointFolder(tmp_path / "a").save(contents(5), manifest(5)).folder
    before = [path.stat().st_mtime_ns for path in sorted(here.iterdir())]
    assert share_all(ranks([1, 1]), [here, here]) == []
    assert [path.stat().st_mtime_ns for path in sorted(here.iterdir())] == before


def test_what_arrives_damaged_is_no_checkpoint(tmp_path: Path) -> None:
    here = CheckpointFolder(tmp_path / "a").save(contents(5), manifest(5)).folder
    there = tmp_path / "b" / here.name
    errors = share_all(ranks([1, 1], lie=b'{"step": 6}'), [here, there])
    assert any(isinstance(error, CheckpointError) for error in errors)
    assert not there.exists()
