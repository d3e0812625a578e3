"""Muon for the blocks' matrices and AdamW for the rest, or AdamW for all; their state by name.

The state is a flat mapping of named tensors, as safetensors wants it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterable, Mapping, NamedTuple

import torch
from torch import Tensor, nn

from model.families.protocol import EMBEDDING, MATRIX, Group, LanguageModel
from model.muon import cautious, even_rows, muon_momentum, muon_scale, orthogonalise
from trmcloud.core.spec.recipe import PhaseRecipe

REFERENCE_WIDTH = 768


@dataclass(frozen=True)
class Rules:
    """How weights follow their gradients. Rates are those before the schedule's factor."""

    optimizer: str = "muon"
    """muon: block matrices by Muon, the rest by AdamW; adamw: everything by AdamW."""
    matrix_lr: float = 2e-2
    embedding_lr: float = 2e-1
    head_lr: float = 4e-3
    weight_decay: float = 0.0
    """Decoupled; embeddings are spared."""
    beta1: float = 0.8
    beta2: float = 0.95
    eps: float = 1e-10
    normuon: bool = False
    """Muon's rows are brought to one size by their running mean squares."""
    cautious_decay: bool = False
    """Muon's matrices decay only where the update shrinks them anyway."""
    width_scale: float = 1.0
    """On AdamW's rates beside Muon: (D / 768)^−½."""

    @classmethod
    def of(cls, settings: PhaseRecipe) -> Rules:
        by_muon = settings.optimizer == "muon"
        return cls(
            optimizer=settings.optimizer,
            matrix_lr=settings.matrix_lr,
            embedding_lr=settings.embedding_lr,
            head_lr=settings.head_lr,
            weight_decay=settings.weight_decay,
            beta1=settings.beta1 or (0.8 if by_muon else 0.9),
            beta2=settings.beta2 or 0.95,
            eps=settings.eps or (1e-10 if by_muon else 1e-8),
            normuon=settings.normuon,
            cautious_decay=settings.cautious_decay,
            width_scale=(settings.width / REFERENCE_WIDTH) ** -0.5 if by_muon else 1.0,
        )

    def adam_rate(self, group: Group) -> float:
        rates = {MATRIX: self.matrix_lr, EMBEDDING: self.embedding_lr}
        return self.width_scale * rates.get(group.kind, self.head_lr)

    def adam_decay(self, group: Group) -> float:
        return 0.0 if group.kind == EMBEDDING else self.weight_decay


class _Part(NamedTuple):
    """A matrix: some rows of a parameter."""

    name: str
    start: int
    stop: int


class Optimizer:
    """One update rule for the whole model; ``step`` multiplies every rate by the schedule's
    factor."""

    def __init__(self, model: LanguageModel, rules: Rules) -> None:
        named, groups = dict(model.named_parameters()), model.parameter_groups()
        by_muon = [n for n in named if rules.optimizer == "muon" and groups[n].kind == MATRIX]
        self._rules = rules
        self._matrices = {name: named[name] for name in by_muon}
        self._others = {name: p for name, p in named.items() if name not in self._matrices}
        self._momenta = {name: torch.zeros_like(p) for name, p in self._matrices.items()}
        self._variances: dict[str, Tensor] = {}
        if rules.normuon:
            self._variances = {
                name: torch.zeros_like(p[:, :1]) for name, p in self._matrices.items()
            }
        self._by_shape: dict[tuple[int, int], list[_Part]] = {}
        for name, parameter in self._matrices.items():
            start = 0
            for rows in groups[name].splits or (len(parameter),):
                part = _Part(name, start, start + rows)
                self._by_shape.setdefault((rows, parameter.shape[1]), []).append(part)
                start += rows
        self._adam_rates: list[float] = []
        self._adam = self._make_adam(groups) if self._others else None

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
        if self._adam is not None:
            for group, rate in zip(self._adam.param_groups, self._adam_rates, strict=True):
                group["lr"] = rate * multiplier
            self._adam.step()
        if self._matrices:
            self._muon(muon_momentum(step), self._rules.matrix_lr * multiplier)

    def state(self) -> dict[str, Tensor]:
        """Everything that a resumed run needs, as named tensors."""
        tensors = {f"momentum.{name}": value for name, value in self._momenta.items()}
        tensors |= {f"variance.{name}": value for name, value in self._variances.items()}
        for name, parameter in self._others.items():
            assert self._adam is not None
            for key, value in self._adam.state[parameter].items():
                tensors[f"{key}.{name}"] = value
        return tensors

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes up what ``state`` gave.

        Raises:
            KeyError, ValueError: the tensors are those of another model or another rule.
        """
        for prefix, kept in (("momentum", self._momenta), ("variance", self._variances)):
            for name, tensor in kept.items():
                saved = tensors[f"{prefix}.{name}"]
                if saved.shape != tensor.shape:
                    raise ValueError(f"{prefix}.{name} has shape {tuple(saved.shape)}")
                tensor.copy_(saved)
        for name, parameter in self._others.items():
            assert self._adam is not None
            state: dict[str, Tensor] = {}
            for key in ("step", "exp_avg", "exp_avg_sq"):
                if f"{key}.{name}" not in tensors:
                    continue  # saved before the first update
                saved = tensors[f"{key}.{name}"]
                if key != "step" and saved.shape != parameter.shape:
                    raise ValueError(f"{key}.{name} has shape {tuple(saved.shape)}")
                state[key] = saved.to(parameter.device, torch.float32).clone()
            self._adam.state[parameter] = state

    def _make_adam(self, groups: Mapping[str, Group]) -> torch.optim.AdamW:
        """Parameters of one rate and decay go together, into one call of the fused kernel."""
        rules = self._rules
        together: dict[tuple[float, float], list[nn.Parameter]] = {}
        for name, parameter in self._others.items():
            key = rules.adam_rate(groups[name]), rules.adam_decay(groups[name])
            together.setdefault(key, []).append(parameter)
        self._adam_rates = [rate for rate, _ in together]
        return torch.optim.AdamW(
            [
                {"params": parameters, "weight_decay": decay}
                for (_, decay), parameters in together.items()
            ],
            betas=(rules.beta1, rules.beta2),
            eps=rules.eps,
            fused=True,
        )

    def _muon(self, momentum: float, rate: float) -> None:
        moved = {name: self._nesterov(name, momentum) for name in self._matrices}
        decay = rate * self._rules.weight_decay
        if not self._rules.cautious_decay:
            for parameter in self._matrices.values():
                parameter.mul_(1.0 - decay)
        for shape, parts in self._by_shape.items():
            updates = orthogonalise(torch.stack([moved[n][a:b] for n, a, b in parts]))
            if self._rules.normuon:
                variance = torch.stack([self._variances[n][a:b] for n, a, b in parts])
                updates = even_rows(updates, variance)
                for (name, start, stop), each in zip(parts, variance, strict=True):
                    self._variances[name][start:stop] = each
            for (name, start, stop), update in zip(parts, updates, strict=True):
                weights = self._matrices[name][start:stop]
                if self._rules.cautious_decay:
                    weights.sub_(cautious(weights, update), alpha=decay)
                weights.add_(update, alpha=-rate * muon_scale(*shape))

    def _nesterov(self, name: str, momentum: float) -> Tensor:
        gradient = self._matrices[name].grad
        if gradient is None:
            raise ValueError(f"{name} has no gradient")
        average = self._momenta[name]
        average.lerp_(gradient, 1.0 - momentum)
        return gradient.lerp(average, momentum)
