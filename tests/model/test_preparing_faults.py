"""What goes wrong while data is made ready is one line, and the same command goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from model.preparing.fetch import PassingError
from tests.model.corpora import parquet
from tests.model.preparing_rig import BASE, Rig, filled, serving_rig
from trmcloud.core.errors import ConflictError, DataError
from trmcloud.core.spec.settings import PhaseRecipe


@pytest.fixture
def rig(tmp_path: Path, settings: PhaseRecipe) -> Iterator[Rig]:
    with serving_rig(tmp_path, settings) as made:
        yield made


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "fault", "words"),
    [
        (3, {"status": 404}, "shard_00003.parquet is not there: the host answered 404"),
        (0, {"html": True}, "a web page instead of shard_00000.parquet"),
        (4, {"flip": 100}, "has SHA-256"),
        (2, {"status": 429}, "the host gave nothing"),
    ],
)
def test_a_fault_of_the_host_is_one_line_and_the_same_command_goes_on(
    rig: Rig, number: int, fault: dict[str, Any], words: str
) -> None:
    def whole() -> set[str]:
        return {path.name for path in (rig.root / "cache").rglob("shard_*.parquet")}

    if number == 3:
        fault = {**fault, "after": whole}
    rig.fault(number, **fault)
    with pytest.raises(DataError, match=words) as found:
        rig.grow(patience_s=0.3)
    came = whole()
    said = rig.progress()
    assert said.state == "failed"
    assert words in said.message
    assert BASE in said.message
    assert (
        said.again == isinstance(found.value, PassingError) == ("status" in fault and number == 2)
    )
    assert "\n" not in str(found.value)
    rig.host.faults.clear()
    before = len(rig.host.requests)
    assert rig.grow()["shards"] == 4
    assert rig.progress().state == "done"
    fetched = {each.path.rpartition("/")[2] for each in rig.host.requests[before:]}
    assert not fetched & came, "what had come is not fetched again"
    assert came or number != 3
    assert rig.decoded()[0] == [filled(each) for each in rig.documents[:-1]]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["truncated", "corrupt", "no column"])
def test_a_bad_parquet_file_is_named(rig: Rig, how: str) -> None:
    path = rig.root / "up/shard_00001.parquet"
    good = path.read_bytes()
    if how == "truncated":
        path.write_bytes(good[: len(good) // 2])
    elif how == "corrupt":
        path.write_bytes(good[:4] + bytes(600) + good[604:])
    else:
        parquet(path, rig.documents[1], column="content")
    with pytest.raises(DataError, match=r"shard_00001.parquet") as found:
        rig.grow()
    if how == "no column":
        assert "no column 'text'" in found.value.what
        assert "content" in found.value.next_step
    else:
        assert "no whole parquet file" in found.value.what
    path.write_bytes(good)
    if how == "no column":
        for file in (rig.root / "cache/raw").rglob("shard_00001*"):
            file.unlink()
    assert rig.grow()["shards"] == 4, "what was no parquet file is fetched anew"


@pytest.mark.slow
def test_a_poisoned_cache_is_not_believed(rig: Rig) -> None:
    rig.grow("one")
    good = rig.bytes_of("one")
    for number, path in enumerate(sorted((rig.root / "cache/tokens").glob("*.bin"))):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.unlink()  # the folder's own name for it stays what it was
        path.write_bytes(bytes(content[: -2 if number == 0 else None]))
    [kept] = (rig.root / "cache/tokenizers").glob("*.json")
    kept.write_text(kept.read_text().replace("sees", "seas", 1))
    rig.grow("two")
    assert rig.bytes_of("two") == good
    assert "in the cache is damaged: it is made anew" in rig.progress("two").note


@pytest.mark.slow
def test_a_shard_that_was_damaged_in_the_folder_is_made_again(rig: Rig) -> None:
    rig.grow()
    good = rig.bytes_of("out")
    bad = rig.root / "out/shard-00001.bin"
    bad.unlink()
    bad.write_bytes(good[bad.name][::-1])
    rig.grow()
    assert rig.bytes_of("out") == good


@pytest.mark.slow
def test_killed_at_any_moment_it_goes_on_to_the_same_bytes(rig: Rig) -> None:
    rig.grow("whole", cache="whole-cache")
    rig.host.bytes_per_second = 60_000
    for seconds in (2.5, 4.0, 5.0):
        process = rig.start("out", "--tokens", "1000000")
        time.sleep(seconds)
        process.kill()
        process.communicate()
    rig.host.bytes_per_second = 0
    process = rig.start("out", "--tokens", "1000000")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    stages = [json.loads(line)["stage"] for line in out.splitlines()]
    assert stages[-1] == "done"
    assert "ready" in stages
    assert rig.bytes_of("out") == rig.bytes_of("whole")


@pytest.mark.slow
def test_told_to_stop_it_says_so_and_a_second_one_is_refused(rig: Rig) -> None:
    rig.fault(2, stalls=True)
    process = rig.start("out")
    deadline = time.monotonic() + 60
    while not (rig.root / "out/progress.json").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    with pytest.raises(ConflictError, match="another process prepares"):
        rig.grow("out")
    process.send_signal(signal.SIGTERM)
    while rig.progress().state != "stopped":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    rig.host.ended.set()
    process.communicate(timeout=60)
    assert process.returncode == 143
    rig.host.faults.clear()
    assert rig.grow("out")["shards"] == 4


@pytest.mark.slow
def test_the_command_fails_in_one_line_and_json(rig: Rig) -> None:
    rig.fault(4, status=404)
    process = rig.start("out")
    _, err = process.communicate(timeout=120)
    assert process.returncode == 9
    line, said = err.strip().splitlines()
    assert line.startswith("error: shard_00004.parquet is not there: the host answered 404")
    assert json.loads(said)["again"] is False


@contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[None]:
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("mounting a small disk needs root")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.slow
def test_a_full_disk_in_the_middle(rig: Rig) -> None:
    with small_disk(rig.root / "disk", 256 << 10):
        ballast = rig.root / "disk/ballast"
        ballast.write_bytes(bytes(210 << 10))
        with pytest.raises(PassingError, match="no room left on the disk") as found:
            rig.grow("disk/out", cache="disk/cache")
        assert "same command" in found.value.next_step
        ballast.unlink()
        assert rig.grow("disk/out", cache="disk/cache")["shards"] == 4
        assert rig.progress("disk/out").state == "done"
