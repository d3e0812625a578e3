"""Muon for the blocks' matrices, AdamW for embedding and head, and their state by name.

``torch.optim.Muon`` (2.9 and later) is not used: it orthogonalises in bfloat16 alone, one matrix
at a time, which on a CPU is slower than the training step it follows, and it keeps its state by
parameter number. Here equal shapes go through one batched product, in float32 on a CPU and
bfloat16 on a GPU, and the state is a flat mapping of named tensors, as safetensors wants it.
"""

from __future__ import annotations

from typing import Iterable, Mapping

import torch
from torch import Tensor, nn

from model.families.protocol import EMBEDDING, MATRIX, LanguageModel
from trmcloud.core.recipe import PhaseRecipe

#: Quintic coefficients of K. Jordan's Muon (2024): steepest at zero, singular values end near 1.
_QUINTIC = (3.4445, -4.7750, 2.0315)
_NEWTON_SCHULZ_STEPS = 5
_NORM_FLOOR = 1e-7
ADAM_BETAS = (0.8, 0.95)
ADAM_EPS = 1e-10
REFERENCE_WIDTH = 768


def muon_momentum(step: int) -> float:
    """Momentum for the update after ``step`` finished ones: .85, rising to .95 at 300."""
    return 0.85 + 0.10 * min(step / 300.0, 1.0)


def muon_scale(rows: int, columns: int) -> float:
    """√max(1, rows/columns): tall matrices take longer steps."""
    return max(1.0, rows / columns) ** 0.5


def orthogonalise(matrices: Tensor) -> Tensor:
    """The nearest (semi-)orthogonal matrices, roughly: singular values within about .7 to 1.2.

    Five Newton–Schulz steps X ← aX + (bA + cA²)X with A = XXᵀ, started at X / ‖X‖.

    Args:
        matrices: (count, rows, columns), float32.

    Returns:
        The same shape, float32; a matrix of zeros stays zeros.
    """
    a, b, c = _QUINTIC
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp_min(_NORM_FLOOR)
    x = x.to(torch.bfloat16 if x.is_cuda else torch.float32)
    for _ in range(_NEWTON_SCHULZ_STEPS):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    x = x.float()
    return x.mT if tall else x


class Optimizer:
    """One update rule for the whole model.

    The rates are those of the recipe; ``step`` multiplies all of them by the schedule's factor.
    AdamW's are scaled by (D / 768)^−½. Weight decay is decoupled and spares the embedding.
    """

    def __init__(self, model: LanguageModel, settings: PhaseRecipe) -> None:
        named, groups = dict(model.named_parameters()), model.parameter_groups()
        self._matrices = {name: p for name, p in named.items() if groups[name].kind == MATRIX}
        self._others = {name: p for name, p in named.items() if name not in self._matrices}
        self._momenta = {name: torch.zeros_like(p) for name, p in self._matrices.items()}
        self._by_shape: dict[tuple[int, ...], list[str]] = {}
        for name, parameter in self._matrices.items():
            self._by_shape.setdefault(tuple(parameter.shape), []).append(name)
        self._matrix_lr = settings.matrix_lr
        self._weight_decay = settings.weight_decay
        width_scale = (settings.width / REFERENCE_WIDTH) ** -0.5
        self._adam_rates = {
            name: width_scale
            * (settings.embedding_lr if groups[name].kind == EMBEDDING else settings.head_lr)
            for name in self._others
        }
        self._adam = torch.optim.AdamW(
            [
                {
                    "params": [parameter],
                    "weight_decay": (0.0 if groups[name].kind == EMBEDDING else self._weight_decay),
                }
                for name, parameter in self._others.items()
            ],
            betas=ADAM_BETAS,
            eps=ADAM_EPS,
            fused=True,
        )

    def parameters(self) -> Iterable[nn.Parameter]:
        return [*self._matrices.values(), *self._others.values()]

    def zero_grad(self) -> None:
        for parameter in self.parameters():
            parameter.grad = None

    @torch.no_grad()
    def step(self, step: int, multiplier: float) -> None:
        """One update after ``step`` finished ones, from the gradients in place.

        Args:
            multiplier: the schedule's factor on every rate, 0 to 1.
        """
        for group, rate in zip(self._adam.param_groups, self._adam_rates.values(), strict=True):
            group["lr"] = rate * multiplier
        self._adam.step()
        momentum = muon_momentum(step)
        rate = self._matrix_lr * multiplier
        for shape, names in self._by_shape.items():
            updates = torch.stack([self._nesterov(name, momentum) for name in names])
            updates = orthogonalise(updates)
            for name, update in zip(names, updates, strict=True):
                parameter = self._matrices[name]
                parameter.mul_(1.0 - rate * self._weight_decay)
                parameter.add_(update, alpha=-rate * muon_scale(shape[0], shape[1]))

    def state(self) -> dict[str, Tensor]:
        """Everything that a resumed run needs, as named tensors."""
        tensors = {f"momentum.{name}": value for name, value in self._momenta.items()}
        for name, parameter in self._others.items():
            for key, value in self._adam.state[parameter].items():
                tensors[f"{key}.{name}"] = value
        return tensors

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes up what ``state`` gave.

        Raises:
            KeyError, ValueError: the tensors are those of another model.
        """
        for name, momentum in self._momenta.items():
            saved = tensors[f"momentum.{name}"]
            if saved.shape != momentum.shape:
                raise ValueError(f"momentum.{name} has shape {tuple(saved.shape)}")
            momentum.copy_(saved)
        for name, parameter in self._others.items():
            state: dict[str, Tensor] = {}
            for key in ("step", "exp_avg", "exp_avg_sq"):
                if f"{key}.{name}" not in tensors:
                    continue  # saved before the first update
                saved = tensors[f"{key}.{name}"]
                if key != "step" and saved.shape != parameter.shape:
                    raise ValueError(f"{key}.{name} has shape {tuple(saved.shape)}")
                state[key] = saved.to(parameter.device, torch.float32).clone()
            self._adam.state[parameter] = state

    def _nesterov(self, name: str, momentum: float) -> Tensor:
        gradient = self._matrices[name].grad
        if gradient is None:
            raise ValueError(f"{name} has no gradient")
        average = self._momenta[name]
        average.lerp_(gradient, 1.0 - momentum)
        return gradient.lerp(average, momentum)
