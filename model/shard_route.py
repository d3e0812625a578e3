"""The way of each rank's shard to the folder of a checkpoint, which lies with the first rank.

Ranks of its machine write there themselves. Those of other machines send theirs to the first rank,
piece by piece through a group of its own beside training's, and that writes them one after another.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from model.checkpoint import Chunks, Contents, write_rest, write_shard
from model.distributed import World
from model.rows import Piece
from model.snapshot import file_bytes
from trmcloud.core.contract.manifest import CheckpointFile


class Route(NamedTuple):
    """Who writes which shard."""

    rank: int
    size: int
    distant: tuple[int, ...]
    """Ranks on other machines than the first."""
    group: Any
    """Theirs and the first rank's, for shards alone; None where there are no such."""

    @classmethod
    def of(cls, world: World) -> Route:
        """A collective call."""
        nodes = [int(each) for each in world.gather(torch.tensor([world.node]))]
        distant = tuple(rank for rank, node in enumerate(nodes) if node != nodes[0])
        return cls(world.rank, world.size, distant, world.saving)

    def write(self, making: Path, taken: Contents) -> tuple[CheckpointFile, ...]:
        """This rank's shards: on disk, or with the first rank.

        Returns:
            The files that this rank has written.

        Raises:
            OSError: one could not be written.
        """
        both: Mapping[str, Mapping[str, Piece]] = {
            "weights": taken.weights,
            "optimizer": taken.optimizer,
        }
        if self.rank in self.distant:
            for pieces in both.values():
                self._send(file_bytes(pieces, is_shard=True))
            return ()
        failed: OSError | None = None
        made: list[CheckpointFile] = []
        try:
            for kind, pieces in both.items():
                content = file_bytes(pieces, is_shard=True)
                made.append(write_shard(making, kind, self.rank + 1, self.size, content))
            if self.rank == 0:
                made += write_rest(making, taken)
        except OSError as error:
            failed = error
        for rank in self.distant if self.rank == 0 else ():
            for kind in both:
                arriving = self._arriving(rank)
                try:
                    if failed is None:
                        made.append(write_shard(making, kind, rank + 1, self.size, arriving))
                except OSError as error:
                    failed = error
                for _ in arriving:  # who sends must not wait for a disk that is full
                    pass
        if failed is not None:
            raise failed
        return tuple(made)

    def _send(self, content: Chunks) -> None:
        for chunk in content:
            piece = torch.frombuffer(bytearray(chunk), dtype=torch.uint8)
            dist.send(torch.tensor([len(piece)]), 0, group=self.group)
            dist.send(piece, 0, group=self.group)
        dist.send(torch.tensor([0]), 0, group=self.group)

    def _arriving(self, rank: int) -> Iterator[memoryview]:
        size = torch.zeros(1, dtype=torch.int64)
        while True:
            dist.recv(size, rank, group=self.group)
            if not int(size):
                return
            piece = torch.empty(int(size), dtype=torch.uint8)
            dist.recv(piece, rank, group=self.group)
            yield memoryview(piece.numpy())  # type: ignore[arg-type]


def as_bytes(files: tuple[CheckpointFile, ...]) -> bytearray:
    """What one rank tells another of its files; blanks may follow."""
    return bytearray(json.dumps([asdict(file) for file in files]).encode())


def of_bytes(content: bytes) -> tuple[CheckpointFile, ...]:
    return tuple(CheckpointFile(**each) for each in json.loads(content))
