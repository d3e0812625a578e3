"""The checkpoints of a command that its next attempt finds where its script wrote them.

One rule for the machine that puts them back, for what is sent to a new machine, and for what that
may fetch from the bucket. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

from trmcloud.core.contract.manifest import LAYOUT, CheckpointManifest, pick_latest

MODELS_ALONE = frozenset({"transformers-model", "transformers-adapter", "diffusers"})
"""Layouts of models without the state that a training is continued from."""
SAVED_TOGETHER_S = 300.0
"""A best that is newer than the last by less was saved beside it; what it holds to resume from is
not known, and so much training is lost at most."""


def checkpoints_to_put_back(made: Iterable[CheckpointManifest]) -> list[CheckpointManifest]:
    """Return those of one phase: first the one to resume from, which is the latest that is more
    than a model alone, where there is one, or the last that was saved beside a best; then the
    newest that the script named best, and the newest that it did not name so, since a script may
    look for both."""
    judged = [m for m in made if not m.is_output]
    whole = [m for m in judged if m.extra.get(LAYOUT) not in MODELS_ALONE] or judged
    latest, last = pick_latest(whole), pick_latest(m for m in whole if not m.is_named_best)
    if latest is not None and latest.is_named_best and last is not None:
        latest = last if latest.created_at - last.created_at < SAVED_TOGETHER_S else latest
    wanted = (
        latest,
        pick_latest(m for m in judged if m.is_named_best),
        pick_latest(m for m in judged if not m.is_named_best),
    )
    return list({m.label: m for m in wanted if m is not None}.values())
