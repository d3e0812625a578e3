"""Checkpoints are whole or not there: kills, damage, a full disk, pruning."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from model.training import checkpoint
from model.training.checkpoint import (
    CheckpointFolder,
    Contents,
    Found,
    read_manifest,
    read_tensors,
    read_text,
    verify,
)
from trmcloud.core.contract.manifest import CheckpointManifest
from trmcloud.core.errors import CheckpointError

NAMES = ["weights.safetensors", "optimizer.safetensors", "state.json", "tokenizer.json"]


def contents(step: int) -> Contents:
    return Contents.of(
        weights={"w": torch.full((3, 3), float(step)), "v": torch.arange(4.0)},
        optimizer={"momentum.w": torch.ones(3, 3), "step.v": torch.tensor(float(step))},
        state={"step": step},
        tokenizer_json='{"t": 1}',
    )


def manifest(step: int, bpb: float | None = 2.0) -> CheckpointManifest:
    return CheckpointManifest(
        run_id="r1",
        phase="fast",
        step=step,
        tokens=step * 10,
        created_at=1000.0 + step,
        recipe="test",
        settings={"depth": 1},
        world_size=1,
        val_bpb=bpb,
        step_losses=(3.0, 2.0),
        cooled=False,
        data_sha256="d",
        tokenizer_sha256="t",
        files=(),
    )


@pytest.fixture
def folder(tmp_path: Path) -> CheckpointFolder:
    made = CheckpointFolder(tmp_path / "checkpoints")
    made.clean()
    return made


def save(folder: CheckpointFolder, step: int, bpb: float | None = 2.0) -> Found:
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


def test_the_manifest_is_written_last_and_then_renamed(
    folder: CheckpointFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
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
