"""A trained model from a checkpoint folder, verified, ready to be asked."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trmcloud.core.contract.manifest import CheckpointManifest
from trmcloud.core.errors import CheckpointError, UsageError
from trmcloud.core.spec.settings import PhaseRecipe
from trmcloud.core.text import one_line

if TYPE_CHECKING:
    import torch

    from model.data.tokenizers import TextTokenizer
    from model.families.protocol import LanguageModel


@dataclass(frozen=True)
class LoadedModel:
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
    """Return the settings that a checkpoint was trained with, without reading anything else of it.

    Raises:
        CheckpointError: its manifest is none, or does not say.
    """
    return _described(folder)[1]


def load_model(folder: Path, *, as_trained: bool = False) -> LoadedModel:
    """The model and tokenizer of a checkpoint; only weights and tokenizer need to be there.

    Args:
        as_trained: on a GPU, products are taken in the number format of its training.

    Raises:
        CheckpointError: incomplete, damaged, or inconsistent.
    """
    import torch

    from model.data.tokenizers import load_tokenizer
    from model.families import registry
    from model.training.checkpoint import read_text, stored_tensors, verify
    from model.training.resume import load_weights

    manifest, described = _described(folder)
    verify(folder, manifest, kinds=("weights", "tokenizer"))
    held = {
        name: tensor.shape for name, tensor in stored_tensors(folder, manifest, "weights").items()
    }
    on_gpu = has_gpu()
    settings = described if as_trained and on_gpu else replace(described, dtype="float32")
    try:
        if settings.work().layers > len(held):
            raise _other_weights(folder, f"it has {len(held)} tensors, fewer than layers")
        # Without memory first: what its settings ask for need not be what its file holds.
        _compare(folder, _shapes(settings), held)
        model = registry.build(settings, torch.device("cpu"))
    except (UsageError, TypeError, ValueError, ZeroDivisionError, RuntimeError) as error:
        raise CheckpointError(
            f"its settings are not those of a model: {error}", where=str(folder)
        ) from None
    load_weights(folder, manifest, model)
    tokenizer = load_tokenizer(read_text(folder, manifest, "tokenizer"), where=str(folder))
    device = torch.device("cuda" if on_gpu else "cpu")
    return LoadedModel(model.to(device).eval(), tokenizer, described, manifest, device)


def _shapes(settings: PhaseRecipe) -> dict[str, tuple[int, ...]]:
    """The shapes of the weights that ``settings`` describe, by name; takes no memory.

    Nothing is initialised: torch imports its compiler for random numbers on the meta device, which
    is a second of each start.
    """
    import torch
    from torch.overrides import TorchFunctionMode

    from model.families import registry

    class UninitialisedWeights(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            named = kwargs or {}
            if getattr(func, "__module__", "") == "torch.nn.init":
                return named["tensor"] if "tensor" in named else args[0]
            return func(*args, **named)

    with torch.device("meta"), UninitialisedWeights():
        made = registry.build(settings, torch.device("meta"))
    return {name: tuple(each.shape) for name, each in made.state_dict().items()}


def _compare(
    folder: Path, asked: Mapping[str, tuple[int, ...]], held: Mapping[str, tuple[int, ...]]
) -> None:
    """
    Raises:
        CheckpointError: the weights' file does not hold the tensors that the settings ask for.
    """
    for name in sorted({*asked, *held}):
        one, other = asked.get(name), held.get(name)
        if one != other:
            raise _other_weights(folder, f"{_line(name)} is {_shape(other)}, not {_shape(one)}")


def _other_weights(folder: Path, why: str) -> CheckpointError:
    return CheckpointError(
        f"the shape of its weights differs from its manifest: {why}",
        where=str(folder),
        next_step="fetch it again, or use another checkpoint",
    )


def _line(name: str) -> str:
    return one_line(name)[:80]


def _shape(shape: tuple[int, ...] | None) -> str:
    if shape is None:
        return "missing"
    return " × ".join(map(str, shape)) or "one number"


_MOST: Mapping[str, int] = {
    "depth": 10_000,
    "width": 1 << 20,
    "head_dim": 1 << 20,
    "vocab_size": 1 << 26,
    "sequence": 1 << 22,
}
"""Of a checkpoint's settings, which a stranger may have written: larger ones are refused before
anything is made of them."""
_MOST_OWN = 1 << 24
"""Of a family's own whole numbers."""


def _check_sizes(settings: PhaseRecipe) -> None:
    """
    Raises:
        ValueError: a size that is none, or beyond what any model here has.
    """
    every = {field.name for field in dataclasses.fields(PhaseRecipe)}
    own = [each.name for each in dataclasses.fields(settings) if each.type == "int"]
    for name, most in {**dict.fromkeys(set(own) - every, _MOST_OWN), **_MOST}.items():
        value = getattr(settings, name)
        if type(value) is not int or not 0 <= value <= most:
            raise ValueError(f"{name} is {value!r:.40}, more than the allowed {most}")


def _described(folder: Path) -> tuple[CheckpointManifest, PhaseRecipe]:
    from model.training.checkpoint import read_manifest

    manifest = read_manifest(folder)
    try:
        settings = PhaseRecipe.from_json(manifest.settings)
        _check_sizes(settings)
        return manifest, settings
    except (TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"its settings are not those of a model: {error}", where=str(folder)
        ) from None
