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


def load_model(folder: Path) -> Loaded:
    """The model and tokenizer of a checkpoint; only weights and tokenizer need to be there.

    Raises:
        CheckpointError: incomplete, damaged, or inconsistent.
    """
    import torch

    from model.checkpoint import read_manifest, read_text, verify
    from model.families import registry
    from model.resume import load_weights
    from model.tokenizers import load_tokenizer

    manifest = read_manifest(folder)
    verify(folder, manifest, kinds=("weights", "tokenizer"))
    try:
        settings = PhaseRecipe.from_json(manifest.settings)
        model = registry.build(replace(settings, dtype="float32"), torch.device("cpu"))
    except (UsageError, TypeError, ValueError, ZeroDivisionError, RuntimeError) as error:
        raise CheckpointError(
            f"its settings describe no model: {error}", where=str(folder)
        ) from None
    load_weights(folder, manifest, model)
    tokenizer = load_tokenizer(read_text(folder, manifest, "tokenizer"), where=str(folder))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return Loaded(model.to(device).eval(), tokenizer, settings, manifest, device)
