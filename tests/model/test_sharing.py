"""A checkpoint goes from the first machine's disk to those that lack it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from model.machine.distributed import World
from model.training import resume
from model.training.checkpoint import CheckpointFolder, read_manifest, verify
from tests.model.test_checkpoint import NAMES, contents, manifest
from trmcloud.core.errors import CheckpointError


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
