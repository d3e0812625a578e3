"""A trained model from a checkpoint folder, verified, ready to be asked."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from trmcloud.core.contract.manifest import CheckpointManifest
from trmcloud.core.errors import CheckpointError, UsageError
from trmcloud.core.spec.recipe import PhaseRecipe

if TYPE_CHECKING:
    import torch

    from model.families.protocol import LanguageModel
    from model.tokenizers import TextTokenizer


@dataclass(frozen=True)
class Loaded:
    """Weights in float32 on ``device``."""

    model: LanguageModel
    tokenizer: TextTokenizer
    settings: PhaseRecipe
    manifest: CheckpointManifest
    device: torch.device


def has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def settings_of(folder: Path) -> PhaseRecipe:
    """What a checkpoint was trained with, nothing else of it being read.

    Raises:
        CheckpointError: its manifest is none, or does not say.
    """
    return _described(folder)[1]


def load_model(folder: Path) -> Loaded:
    """The model and tokenizer of a checkpoint; only weights and tokenizer need to be there.

    Raises:
        CheckpointError: incomplete, damaged, or inconsistent.
    """
    import torch

    from model.checkpoint import read_text, verify
    from model.families import registry
    from model.resume import load_weights
    from model.tokenizers import load_tokenizer

    manifest, settings = _described(folder)
    verify(folder, manifest, kinds=("weights", "tokenizer"))
    try:
        model = registry.build(replace(settings, dtype="float32"), torch.device("cpu"))
    except (UsageError, TypeError, ValueError, ZeroDivisionError, RuntimeError) as error:
        raise CheckpointError(
            f"its settings describe no model: {error}", where=str(folder)
        ) from None
    load_weights(folder, manifest, model)
    tokenizer = load_tokenizer(read_text(folder, manifest, "tokenizer"), where=str(folder))
    device = torch.device("cuda" if has_gpu() else "cpu")
    return Loaded(model.to(device).eval(), tokenizer, settings, manifest, device)


def _described(folder: Path) -> tuple[CheckpointManifest, PhaseRecipe]:
    from model.checkpoint import read_manifest

    manifest = read_manifest(folder)
    try:
        return manifest, PhaseRecipe.from_json(manifest.settings)
    except (TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"its settings describe no model: {error}", where=str(folder)
        ) from None
