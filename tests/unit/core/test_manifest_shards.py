"""A checkpoint in shards: what it is known by, and that it is whole."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.core.manifests import STATE, WEIGHTS, manifest
from trmcloud.core.contract.command import RECIPE
from trmcloud.core.contract.manifest import (
    GATHERED,
    CheckpointFile,
    CheckpointManifest,
    from_json,
    to_json,
)
from trmcloud.core.contract.shard_names import shard_name
from trmcloud.core.errors import CheckpointError

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
