"""The start of a chat phase: the weights that it trains on, and conversations in their tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from model.machine.distributed import World
from model.preparing.chat_ids import tokenize_conversations
from model.training.checkpoint import CheckpointFolder, FoundCheckpoint, read_manifest, read_text
from trmcloud.core.contract.manifest import pick_best, pick_latest
from trmcloud.core.contract.pod_contract import CHECKPOINTS_DIR
from trmcloud.core.contract.trainer_contract import PhaseJob
from trmcloud.core.errors import CheckpointError
from trmcloud.core.spec.settings import SINGLE_PHASE

CONVERSATIONS_DIR = "conversations"


def begin_chat(
    job: PhaseJob, checkpoints: CheckpointFolder, world: World, between: Callable[[], object]
) -> tuple[PhaseJob, Path]:
    """Return the job with the weights that its first attempt starts from, and the folder of its
    conversations as ids. A collective call.

    Without weights of its own, it starts from the best checkpoint of the train phase of the same
    run. The tokenizer is that of the phase's own newest checkpoint, else that of these weights.

    Args:
        between: called every thousand conversations.

    Raises:
        CheckpointError: there are no weights to start from.
        DataError: the tokenizer lacks tokens for conversations, or the folder is damaged.
    """
    weights = job.initial_weights
    if not weights and (best := _best_of(Path(job.out_dir).with_name(SINGLE_PHASE))) is not None:
        weights = str(best.folder)
    # Rank 0 decides for all: on another machine there may be no checkpoint.
    text = world.told(_tokenizer(weights, checkpoints).encode() if world.is_main else b"").decode()
    if not text:
        raise CheckpointError(
            "the chat phase has no weights to start from",
            where=job.out_dir,
            next_step="launch it from a run: --phase chat --from RUN",
        )
    out = Path(job.out_dir) / CONVERSATIONS_DIR
    if world.local_rank == 0:
        tokenize_conversations(Path(job.data_dir), text, out, between)
    world.part()
    return replace(job, initial_weights=weights), out


def _best_of(phase: Path) -> FoundCheckpoint | None:
    """The best checkpoint of a phase's folder; the newest where none was evaluated."""
    complete = CheckpointFolder(phase / CHECKPOINTS_DIR).complete()
    manifests = [each.manifest for each in complete]
    chosen = pick_best(manifests) or pick_latest(manifests)
    return next((each for each in complete if each.manifest is chosen), None)


def _tokenizer(weights: str, checkpoints: CheckpointFolder) -> str:
    """Its JSON; empty where there is no checkpoint at all."""
    own = checkpoints.complete()
    if own:
        newest = max(own, key=lambda each: each.manifest.step)
        return read_text(newest.folder, newest.manifest, "tokenizer")
    if not weights:
        return ""
    folder = Path(weights)
    return read_text(folder, read_manifest(folder), "tokenizer")
