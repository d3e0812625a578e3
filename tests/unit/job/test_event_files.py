"""TensorBoard's event files, written by its own packages, read by ours as they grow."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from trmcloud.pod.job.event_files import EventFiles, reading_of
from trmcloud.pod.job.readings import Reading


def written(folder: Path) -> Path:
    """A file as torch's writer makes it: scalars of both styles, and what is no scalar."""
    numpy = pytest.importorskip("numpy")
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    with tensorboard.SummaryWriter(str(folder)) as writer:
        writer.add_scalar("eval/loss", 2.5, 10)
        writer.add_histogram("weights", numpy.arange(9.0), 10)
        writer.add_text("note", "hello", 11)
        writer.add_scalar("eval/loss", 1.25, 20, new_style=True)
        writer.add_scalar("eval/loss", float("nan"), 30)
    [path] = folder.glob("events.out.tfevents.*")
    return path


def told(readings: list[Reading]) -> list[tuple[int | None, str]]:
    return [(reading.step, f"{reading.metrics['eval/loss']:g}") for reading in readings]


def test_scalars_of_both_styles_are_read_and_nothing_else(tmp_path: Path) -> None:
    files = EventFiles(tmp_path)
    written(tmp_path / "runs" / "today")
    assert told(files.take(0.0)) == [(10, "2.5"), (20, "1.25"), (30, "nan")]
    assert files.seen == 3
    assert files.take(10.0) == []


def test_what_stood_there_before_is_of_another_run(tmp_path: Path) -> None:
    path = written(tmp_path)
    files = EventFiles(tmp_path)
    assert files.take(0.0) == []
    written(tmp_path / "later")
    assert len(files.take(10.0)) == 3
    assert path.exists()


def test_a_file_that_grows_byte_by_byte_says_each_event_once(tmp_path: Path) -> None:
    content = written(tmp_path / "elsewhere").read_bytes()
    work = tmp_path / "work"
    work.mkdir()
    files, found = EventFiles(work), list[Reading]()
    with open(work / "events.out.tfevents.1", "wb", buffering=0) as file:
        for at in range(0, len(content), 7):
            file.write(content[at : at + 7])
            found += files.take(float(at * 10))
    assert told(found) == [(10, "2.5"), (20, "1.25"), (30, "nan")]


def test_a_record_longer_than_any_that_is_read_is_passed_over(tmp_path: Path) -> None:
    content = written(tmp_path / "elsewhere").read_bytes()
    work = tmp_path / "work"
    work.mkdir()
    files = EventFiles(work)
    picture = (3 << 20).to_bytes(8, "little") + bytes(4 + (3 << 20) + 4)
    (work / "events.out.tfevents.1").write_bytes(picture + content)
    found = files.take(0.0) + files.take(10.0) + files.take(20.0)
    assert len(found) == 3


@pytest.mark.parametrize("seed", range(20))
def test_a_damaged_file_costs_nothing(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    content = bytearray(written(tmp_path / "elsewhere").read_bytes())
    for _ in range(20):
        content[rng.randrange(len(content))] = rng.randrange(256)
    work = tmp_path / "work"
    work.mkdir()
    files = EventFiles(work)
    (work / "events.out.tfevents.1").write_bytes(content)
    for round_ in range(3):
        assert len(files.take(round_ * 10.0)) <= 3


def test_links_and_folders_that_are_links_are_not_followed(tmp_path: Path) -> None:
    path = written(tmp_path / "elsewhere")
    work = tmp_path / "work"
    work.mkdir()
    files = EventFiles(work)
    (work / path.name).symlink_to(path)
    (work / "runs").symlink_to(path.parent)
    assert files.take(0.0) == []


@pytest.mark.parametrize("event", [b"", b"\xff" * 40, b"\x0a", b"\x2a\x7f", bytes(100)])
def test_what_is_no_event_says_nothing(event: bytes) -> None:
    assert reading_of(event) is None
