"""The engine under every transfer: parts, lanes, notes and hashes, by ways that fail."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from pathlib import Path

import pytest

from trmcloud.core.contract.manifest import CheckpointFile
from trmcloud.io import transfer as engine
from trmcloud.io.transfer import (
    DamagedFile,
    DiskFault,
    IncomingFile,
    Lane,
    MovingFile,
    Transfer,
    Way,
    receive,
)

DATA = hashlib.shake_128(b"data").digest(5000)


def wanted(name: str = "weights.bin") -> CheckpointFile:
    return CheckpointFile(name, "weights", len(DATA), hashlib.sha256(DATA).hexdigest())


class Dropped(Exception):
    pass


def serving(data: bytes = DATA, drops: int = 0, asked: list[tuple[int, int]] | None = None) -> Way:
    """``data``, in blocks of 100 bytes; the connection drops so often, each time after a block."""
    left = [drops]

    def serve(lane: Lane) -> None:
        for part in lane:
            if asked is not None:
                asked.append((part.start, part.end))
            while part.start < part.end:
                lane.write(data[part.start : min(part.start + 100, part.end)])
                if left[0] > 0:
                    left[0] -= 1
                    raise Dropped

    return Way(serve, 3, 1000, lambda error: isinstance(error, Dropped))


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_FIRST_PAUSE_S", 0.0)


def quiet(done: int, whole: int) -> None:
    pass


def test_a_lane_that_drops_gives_back_what_is_left_and_goes_on(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    asked: list[tuple[int, int]] = []
    way = serving(drops=8, asked=asked)._replace(lanes=1)
    receive(tmp_path, [wanted()], way, lambda *now: told.append(now))
    assert (tmp_path / "weights.bin").read_bytes() == DATA
    assert os.listdir(tmp_path) == ["weights.bin"]
    assert told == sorted(told)
    assert told[-1] == (5000, 5000)
    assert len(asked) == 13
    assert all(start % 1000 in range(0, 1000, 100) for start, _ in asked)


def test_a_lane_that_gets_nothing_is_given_up_with_its_own_error(tmp_path: Path) -> None:
    tries = []

    def serve(lane: Lane) -> None:
        lane.take()
        tries.append(1)
        raise Dropped("no line")

    way = Way(serve, 1, 1000, lambda error: isinstance(error, Dropped))
    with pytest.raises(Dropped, match="no line"):
        receive(tmp_path, [wanted()], way, quiet)
    assert len(tries) == 6
    assert not (tmp_path / "weights.bin").exists()
    with pytest.raises(Dropped):
        Transfer([MovingFile("empty", -1, 0, spans=[(0, 0)])], way).run(quiet)


def test_the_next_process_asks_for_the_holes_alone(tmp_path: Path) -> None:
    (tmp_path / ".weights.bin.part").write_bytes(DATA[:1200] + bytes(800) + DATA[2000:4500])
    note = {"size": 5000, "sha256": wanted().sha256, "done": [[0, 1200], [2000, 4500]]}
    (tmp_path / ".weights.bin.part.json").write_text(json.dumps(note))
    asked: list[tuple[int, int]] = []
    due: list[int] = []
    receive(tmp_path, [wanted()], serving(asked=asked), quiet, due.append)
    assert sorted(asked) == [(1000, 2000), (4000, 5000)]
    assert due == [1300]
    assert (tmp_path / "weights.bin").read_bytes() == DATA


def test_remains_that_are_wrong_are_brought_once_more_and_damage_is_not(tmp_path: Path) -> None:
    (tmp_path / ".weights.bin.part").write_bytes(bytes(3000))
    note = {"size": 5000, "sha256": wanted().sha256, "done": [[0, 3000]]}
    (tmp_path / ".weights.bin.part.json").write_text(json.dumps(note))
    receive(tmp_path, [wanted()], serving(), quiet)
    assert (tmp_path / "weights.bin").read_bytes() == DATA
    with pytest.raises(DamagedFile, match=r"a/b\.bin"):
        receive(tmp_path, [wanted("a/b.bin")], serving(bytes(5000)), quiet)
    assert os.listdir(tmp_path / "a") == []


def test_what_the_caller_raises_ends_all_lanes_and_leaves_a_note(tmp_path: Path) -> None:
    interrupted = threading.Event()

    def serve(lane: Lane) -> None:
        lane.on_stop(interrupted.set)
        for part in lane:
            lane.write(DATA[part.start : part.start + 100])
            assert interrupted.wait(20)
            lane.write(DATA[part.start : part.start + 100])
            lane.write(DATA[part.start : part.start + 100])

    def give_up(done: int, whole: int) -> None:
        if done >= 300:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        receive(tmp_path, [wanted()], Way(serve, 3, 1000), give_up)
    note = json.loads((tmp_path / ".weights.bin.part.json").read_text())
    assert note["done"] == [[0, 200], [1000, 1200], [2000, 2200]]


def test_a_disk_that_fails_is_told_from_a_line_that_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.pwrite", full)
    with pytest.raises(DiskFault, match="No space left"):
        receive(tmp_path, [wanted()], serving(), quiet)


def test_what_is_sent_is_hashed_on_its_way_and_empty_files_are_sent_too(tmp_path: Path) -> None:
    paths = {name: tmp_path / name for name in ("a", "b")}
    paths["a"].write_bytes(DATA)
    paths["b"].touch()
    sent: list[tuple[str, int, int]] = []

    def serve(lane: Lane) -> None:
        for part in lane:
            sent.append((part.file.name, part.start, part.end))
            lane.moved(part.end)

    def send(sha256: str) -> None:
        with open(paths["a"], "rb") as a, open(paths["b"], "rb") as b:
            files = [
                MovingFile("a", a.fileno(), 5000, sha256, [(0, 3000), (3000, 5000)]),
                MovingFile("b", b.fileno(), 0, "", [(0, 0)]),
            ]
            Transfer(files, Way(serve, 2)).run(quiet)

    send(wanted().sha256)
    assert sorted(sent) == [("a", 0, 3000), ("a", 3000, 5000), ("b", 0, 0)]
    with pytest.raises(DamagedFile):
        send("0" * 64)


def test_no_note_outlives_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller's thread keeps notes while another one gives the file its name."""
    monkeypatch.setattr(engine, "_NOTE_EVERY_S", 0.0)
    told, settle = threading.Semaphore(0), IncomingFile.settle

    def slowly(file: IncomingFile) -> bool:
        is_right = settle(file)
        while told.acquire(blocking=False):
            pass
        assert told.acquire(timeout=20)
        assert told.acquire(timeout=20), "a note was kept before it was told"
        return is_right

    monkeypatch.setattr(IncomingFile, "settle", slowly)
    receive(tmp_path, [wanted()], serving(), lambda done, whole: told.release())
    assert os.listdir(tmp_path) == ["weights.bin"]
