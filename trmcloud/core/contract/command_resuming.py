"""The checkpoints of a command that its next attempt finds where its script wrote them.

One rule for the machine that puts them back, for what is sent to a new machine, and for what that
may fetch from the bucket. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

from trmcloud.core.contract.manifest import LAYOUT, CheckpointManifest, pick_latest

MODELS_ALONE = frozenset({"transformers-model", "transformers-adapter", "diffusers"})
"""Layouts of models without the state that a training is continued from."""


def checkpoints_to_put_back(made: Iterable[CheckpointManifest]) -> list[CheckpointManifest]:
    """Return those of one phase: first the one to resume from, which is the latest that is more
    than a model alone, where there is one; then the newest that the script named best, and the
    newest that it did not name so, since a script may look for both."""
    judged = [m for m in made if not m.is_output]
    whole = [m for m in judged if m.extra.get(LAYOUT) not in MODELS_ALONE]
    wanted = (
        pick_latest(whole) or pick_latest(judged),
        pick_latest(m for m in judged if m.is_named_best),
        pick_latest(m for m in judged if not m.is_named_best),
    )
    return list({m.label: m for m in wanted if m is not None}.values())
