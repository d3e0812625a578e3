"""A checkpoint in shards comes home as single files, or not at all."""

from __future__ import annotations

import errno
import hashlib
import os
import tracemalloc
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.core.manifests import manifest
from trmcloud.app.checkpoints import gathering
from trmcloud.app.checkpoints.fetching import copy, read_manifest, sound_file
from trmcloud.core.contract import manifest as mf
from trmcloud.core.contract import shards
from trmcloud.core.contract.manifest import CheckpointFile, CheckpointManifest
from trmcloud.core.contract.shard_names import shard_name
from trmcloud.core.errors import CheckpointError, ConflictError
from trmcloud.io.hashing import holds

ROWS = 10
SPANS = ((0, 4), (4, 8), (8, 10))
"""Of three ranks, the last with fewer."""


def row(name: str, number: int, columns: int) -> bytes:
    return hashlib.sha256(f"{name} {number}".encode()).digest()[:4] * columns


def shard_bytes(
    tensors: Mapping[str, tuple[int, int]], span: tuple[int, int], *, first: bool
) -> bytes:
    """Those rows of each tensor that one rank holds; ``tensors``: (rows, columns) by name. The
    first has a counter, too."""
    parts, data, at = [], b"", 0
    for name, (rows, columns) in tensors.items():
        start, stop = min(span[0], rows), min(span[1], rows)
        here = b"".join(row(name, number, columns) for number in range(start, stop))
        shape, whole = (stop - start, columns), (rows, columns)
        parts.append(shards.Part(name, "F32", shape, at, at + len(here), start, whole))
        data, at = data + here, at + len(here)
    if first:
        parts.append(shards.Part("count", "F32", (), at, at + 4, 0, ()))
        data += b"\x01\x02\x03\x04"
    return shards.header_bytes(parts, is_shard=True) + data


TENSORS = {"w": (ROWS, 3), "thin": (2, 5), "v": (ROWS, 1)}


def sharded(folder: Path, *, optimizer: bool = True, columns: int = 3) -> CheckpointManifest:
    """A checkpoint of three shards of each kind in ``folder``."""
    folder.mkdir(parents=True)
    files = []
    tensors = {**TENSORS, "w": (ROWS, columns)}
    for kind in ("weights", "optimizer") if optimizer else ("weights",):
        for number, span in enumerate(SPANS, 1):
            name = shard_name(kind, number, len(SPANS))
            content = shard_bytes(tensors, span, first=number == 1)
            (folder / name).write_bytes(content)
            files.append(described(folder / name, kind))
    (folder / "tokenizer.json").write_text("{}")
    files.append(described(folder / "tokenizer.json", "tokenizer"))
    made = replace(manifest(10), files=tuple(files))
    (folder / mf.MANIFEST_NAME).write_text(mf.to_json(made))
    return made


def described(path: Path, kind: str) -> CheckpointFile:
    content = path.read_bytes()
    return CheckpointFile(path.name, kind, len(content), hashlib.sha256(content).hexdigest())


def source_in(folder: Path) -> Any:
    def bring(made: CheckpointManifest, names: Sequence[str], into: str, progress: Any) -> None:
        target = Path(into)
        target.mkdir(exist_ok=True)
        for file in made.files:
            if file.name not in names:
                continue
            content = (folder / file.name).read_bytes()
            if hashlib.sha256(content).hexdigest() != file.sha256:
                raise CheckpointError(f"{file.name} is damaged")
            (target / file.name).write_bytes(content)

    return bring


def fetched(folder: Path, into: Path, made: CheckpointManifest, **how: bool) -> Any:
    how = {"weights_only": False, **how}
    return copy(source_in(folder), made, into, progress=lambda done, whole: None, **how)


def values(path: Path, name: str) -> bytes:
    with open(path, "rb") as file:
        header = shards.read_header(file.read, path.stat().st_size, str(path))
        [part] = [part for part in header.parts if part.name == name]
        assert part.shape == part.whole, "it is no shard"
        file.seek(header.data_at + part.begin)
        return file.read(part.end - part.begin)


def test_shards_come_home_as_one_file_of_each_kind(tmp_path: Path) -> None:
    made = sharded(tmp_path / "there")
    got = fetched(tmp_path / "there", tmp_path / "home", made)
    assert sorted(os.listdir(tmp_path / "home")) == [
        "manifest.json", "optimizer.safetensors", "tokenizer.json", "weights.safetensors",
    ]  # fmt: skip
    for name, (rows, columns) in TENSORS.items():
        whole = b"".join(row(name, number, columns) for number in range(rows))
        assert values(tmp_path / "home" / "weights.safetensors", name) == whole
    assert values(tmp_path / "home" / "weights.safetensors", "count") == b"\x01\x02\x03\x04"
    there = read_manifest(tmp_path / "home")
    assert there == got.manifest
    assert not there.is_sharded
    assert made.sha256 in there.sha256s
    for file in there.files:
        assert holds(tmp_path / "home" / file.name, file.size_bytes, file.sha256)
    assert sound_file(tmp_path / "home", "weights") == tmp_path / "home" / "weights.safetensors"


def test_what_is_there_is_known_again_and_not_fetched_twice(tmp_path: Path) -> None:
    made = sharded(tmp_path / "there")
    first = fetched(tmp_path / "there", tmp_path / "home", made)
    again = copy(
        lambda *_: pytest.fail("nothing is to be brought"),
        made,
        tmp_path / "home",
        weights_only=False,
        progress=lambda done, whole: None,
    )
    assert again.already_there
    assert again.manifest == first.manifest
    (tmp_path / "home" / "weights.safetensors").write_bytes(b"other")
    with pytest.raises(ConflictError, match="no whole weights"):
        fetched(tmp_path / "there", tmp_path / "home", made)


def test_weights_alone_do_not_pass_for_all_of_it(tmp_path: Path) -> None:
    made = sharded(tmp_path / "there")
    fetched(tmp_path / "there", tmp_path / "home", made, weights_only=True)
    assert "optimizer.safetensors" not in os.listdir(tmp_path / "home")
    with pytest.raises(ConflictError, match="no whole optimizer"):
        fetched(tmp_path / "there", tmp_path / "home", made)


def test_it_is_never_whole_in_memory(tmp_path: Path) -> None:
    made = sharded(tmp_path / "there", optimizer=False, columns=1_500_000)
    assert made.size_bytes > 55_000_000
    tracemalloc.start()
    try:
        gathering.gather(tmp_path / "there", made)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < made.size_bytes / 4


def test_a_copy_that_was_ended_while_it_was_put_together_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = sharded(tmp_path / "there")
    written = []

    def full(descriptor: int) -> None:
        written.append(descriptor)
        if len(written) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(OSError, match="No space"):
            fetched(tmp_path / "there", tmp_path / "home", made)
    partial = tmp_path / "home.partial"
    assert not (tmp_path / "home").exists()
    assert {file.name for file in made.files} <= set(os.listdir(partial)), "the shards are kept"
    assert not any(name.startswith(".gathering") for name in os.listdir(partial))
    assert not fetched(tmp_path / "there", tmp_path / "home", made).already_there
    assert not partial.exists()


@pytest.mark.parametrize(
    ("spans", "why"),
    [
        (((0, 4), (4, 8), (9, 10)), "misses rows at 8 of 10"),
        (((0, 4), (3, 8), (8, 10)), "has rows twice at 3 of 10"),
        (((0, 4), (4, 8), (8, 8)), "has 8 rows of 10"),
    ],
)
def test_shards_that_do_not_make_up_whole_tensors_are_refused(
    tmp_path: Path, spans: tuple[tuple[int, int], ...], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "SPANS", spans)
    made = sharded(tmp_path / "there")
    with pytest.raises(CheckpointError, match=f"cannot be put together: v {why}"):
        fetched(tmp_path / "there", tmp_path / "home", made)
    assert not (tmp_path / "home").exists()


def test_a_shard_of_another_model_is_refused(tmp_path: Path) -> None:
    made = sharded(tmp_path / "there")
    last = tmp_path / "there" / shard_name("weights", 3, 3)
    other = {name: (rows, columns + 1) for name, (rows, columns) in TENSORS.items()}
    last.write_bytes(shard_bytes(other, SPANS[2], first=False))
    files = [described(last, "weights") if f.name == last.name else f for f in made.files]
    with pytest.raises(CheckpointError, match="another shape or number format in another shard"):
        fetched(tmp_path / "there", tmp_path / "home", replace(made, files=tuple(files)))


def test_a_shard_that_is_half_there_is_refused(tmp_path: Path) -> None:
    made = sharded(tmp_path / "there")
    half = tmp_path / "there" / shard_name("weights", 2, 3)
    half.write_bytes(half.read_bytes()[:-7])
    with pytest.raises(CheckpointError, match=r"weights-00002-of-00003\.safetensors is damaged"):
        fetched(tmp_path / "there", tmp_path / "home", made)
    files = [described(half, "weights") if f.name == half.name else f for f in made.files]
    with pytest.raises(CheckpointError, match="its header says"):
        fetched(tmp_path / "there", tmp_path / "home", replace(made, files=tuple(files)))


@pytest.mark.parametrize("gone", [1, 3])
def test_a_manifest_that_lacks_a_shard_is_no_checkpoint(tmp_path: Path, gone: int) -> None:
    made = sharded(tmp_path / "there")
    name = shard_name("weights", gone, 3)
    lacking = replace(made, files=tuple(file for file in made.files if file.name != name))
    with pytest.raises(CheckpointError, match="nor every shard"):
        mf.from_json(mf.to_json(lacking), "here")


def test_one_that_is_whole_stays_as_it_is(tmp_path: Path) -> None:
    made = manifest(10)
    assert gathering.gather(tmp_path, made) is made
