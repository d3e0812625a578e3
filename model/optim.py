"""Muon for the blocks' matrices and AdamW for the rest, or AdamW for all; their state by name.

The state is a flat mapping of named tensors, as safetensors wants it. Of a sharded model each rank
updates the rows that it holds, and has their states alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn

from model.families.protocol import EMBEDDING, MATRIX, Group, LanguageModel
from model.muon import cautious, even_rows, muon_momentum, muon_scale, orthogonalise
from model.muon_sharing import Matrix, dealt
from model.rows import Piece, local, piece_of, span_of
from model.saved_tensors import Saved, rows_of, whole_of
from model.sharding import peers_of, total_norm
from trmcloud.core.spec.recipe import PhaseRecipe

REFERENCE_WIDTH = 768
_CLIP_FLOOR = 1e-6


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


class Optimizer:
    """One update rule for the whole model; ``step`` multiplies every rate by the schedule's
    factor."""

    def __init__(self, model: LanguageModel, rules: Rules) -> None:
        named, groups = dict(model.named_parameters()), model.parameter_groups()
        by_muon = [n for n in named if rules.optimizer == "muon" and groups[n].kind == MATRIX]
        self._rules = rules
        self._peers = peers_of(named.values())
        self._matrices = {name: named[name] for name in by_muon}
        self._others = {name: p for name, p in named.items() if name not in self._matrices}
        self._momenta = {name: torch.zeros_like(local(p)) for name, p in self._matrices.items()}
        self._variances: dict[str, Tensor] = {}
        if rules.normuon:
            self._variances = {
                name: torch.zeros_like(local(p)[:, :1]) for name, p in self._matrices.items()
            }
        self._by_shape: dict[tuple[int, int], list[Matrix]] = {}
        for name, parameter in self._matrices.items():
            start = 0
            for rows in groups[name].splits or (len(parameter),):
                part = Matrix(name, start, start + rows, len(parameter))
                self._by_shape.setdefault((rows, parameter.shape[1]), []).append(part)
                start += rows
        self._adam_rates: list[float] = []
        # AdamW is given plain tensors: fused kernels then do not care who holds the other rows.
        self._plain = {
            name: nn.Parameter(local(p)) if self._peers else p for name, p in self._others.items()
        }
        self._adam = self._make_adam(groups) if self._others else None

    def parameters(self) -> Iterable[nn.Parameter]:
        return [*self._matrices.values(), *self._others.values()]

    def zero_grad(self) -> None:
        for parameter in self.parameters():
            parameter.grad = None

    @torch.no_grad()
    def clip(self, most: float) -> Tensor:
        """Scales the gradients in place so that their norm is ``most`` at the most; returns what it
        was, a scalar. A collective call where the model is sharded."""
        if self._peers is None:
            return nn.utils.clip_grad_norm_(self.parameters(), most).detach()
        held = [local(p.grad) for p in self.parameters() if p.grad is not None]
        norm = total_norm(held, self._peers)
        torch._foreach_mul_(held, (most / (norm + _CLIP_FLOOR)).clamp(max=1.0))
        return norm

    @torch.no_grad()
    def step(self, step: int, multiplier: float) -> None:
        """One update after ``step`` finished ones, from the gradients in place.

        Args:
            multiplier: the schedule's factor on every rate, 0 to 1.
        """
        if self._adam is not None:
            for group, rate in zip(self._adam.param_groups, self._adam_rates, strict=True):
                group["lr"] = rate * multiplier
            self._show_adam()
            self._adam.step()
        if self._matrices:
            self._muon(muon_momentum(step), self._rules.matrix_lr * multiplier)

    def state(self) -> dict[str, Tensor]:
        """Everything that a resumed run needs, as named tensors: of the rows that this rank
        holds."""
        return {name: piece.tensor for name, piece in self.pieces().items()}

    def pieces(self) -> dict[str, Piece]:
        """``state``, with where in the whole tensors these rows stand."""
        made: dict[str, Piece] = {}
        for prefix, kept in (("momentum", self._momenta), ("variance", self._variances)):
            for name, tensor in kept.items():
                _, shape, start = piece_of(self._matrices[name])
                made[f"{prefix}.{name}"] = Piece(tensor, (shape[0], tensor.shape[1]), start)
        for name, parameter in self._others.items():
            assert self._adam is not None
            _, shape, start = piece_of(parameter)
            for key, value in self._adam.state[self._plain[name]].items():
                is_like = value.dim() > 0
                made[f"{key}.{name}"] = Piece(value, shape, start) if is_like else Piece(value, ())
        return made

    def load_state(self, tensors: Mapping[str, Saved]) -> None:
        """Takes up what ``state`` gave, of whole tensors: the rows that this rank holds.

        Raises:
            KeyError, ValueError: the tensors are those of another model or another rule.
        """
        for prefix, kept in (("momentum", self._momenta), ("variance", self._variances)):
            for name, tensor in kept.items():
                saved = tensors[f"{prefix}.{name}"]
                if tuple(saved.shape) != (len(self._matrices[name]), tensor.shape[1]):
                    raise ValueError(f"{prefix}.{name} has shape {tuple(saved.shape)}")
                tensor.copy_(rows_of(saved, span_of(self._matrices[name])))
        for name, parameter in self._others.items():
            assert self._adam is not None
            state: dict[str, Tensor] = {}
            for key in ("step", "exp_avg", "exp_avg_sq"):
                if f"{key}.{name}" not in tensors:
                    continue  # saved before the first update
                saved = tensors[f"{key}.{name}"]
                if key == "step":
                    state[key] = whole_of(saved).to(parameter.device, torch.float32).clone()
                    continue
                if tuple(saved.shape) != tuple(parameter.shape):
                    raise ValueError(f"{key}.{name} has shape {tuple(saved.shape)}")
                held = rows_of(saved, span_of(parameter))
                state[key] = held.to(parameter.device, torch.float32).clone()
            self._adam.state[self._plain[name]] = state

    def _make_adam(self, groups: Mapping[str, Group]) -> torch.optim.AdamW:
        """Parameters of one rate and decay go together, into one call of the fused kernel."""
        rules = self._rules
        together: dict[tuple[float, float], list[nn.Parameter]] = {}
        for name, parameter in self._plain.items():
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

    def _show_adam(self) -> None:
        """Its plain tensors stand for the rows as they lie now, which FSDP2 may move once."""
        if self._peers is None:
            return
        for name, parameter in self._others.items():
            self._plain[name].data = local(parameter)
            self._plain[name].grad = None if parameter.grad is None else local(parameter.grad)

    def _muon(self, momentum: float, rate: float) -> None:
        moved = {name: self._nesterov(name, momentum) for name in self._matrices}
        decay = rate * self._rules.weight_decay
        held = {name: local(parameter) for name, parameter in self._matrices.items()}
        if not self._rules.cautious_decay:
            for weights in held.values():
                weights.mul_(1.0 - decay)
        for shape, parts in self._by_shape.items():
            updates = self._updates(parts, moved)
            for part, update in zip(parts, updates, strict=True):
                weights = held[part.name][self._rows_here(part)]
                if self._rules.cautious_decay:
                    weights.sub_(cautious(weights, update), alpha=decay)
                weights.add_(update, alpha=-rate * muon_scale(*shape))

    def _updates(self, parts: list[Matrix], moved: Mapping[str, Tensor]) -> Iterable[Tensor]:
        """Of each matrix the rows that this rank holds; the variances are brought up to date."""
        mine = [moved[part.name][self._rows_here(part)] for part in parts]
        if not self._rules.normuon:
            if self._peers is None:
                return orthogonalise(torch.stack(mine))
            return dealt(parts, mine, self._peers, orthogonalise)
        there = [self._variances[part.name][self._rows_here(part)] for part in parts]
        if self._peers is not None:
            return self._evened_rows(parts, mine, there)
        variance = torch.stack(there)
        updates = even_rows(orthogonalise(torch.stack(mine)), variance)
        torch._foreach_copy_(there, list(variance))
        return updates

    def _evened_rows(
        self, parts: list[Matrix], mine: list[Tensor], there: list[Tensor]
    ) -> Iterator[Tensor]:
        """A row's variance travels with it, as one more column."""
        assert self._peers is not None
        wide = [torch.cat(pair, dim=1) for pair in zip(mine, there, strict=True)]
        made = dealt(parts, wide, self._peers, _evened)
        for variance, rows in zip(there, made, strict=True):
            variance.copy_(rows[:, -1:])
            yield rows[:, :-1]

    def _rows_here(self, part: Matrix) -> slice:
        """Of a matrix, where its rows lie in what this rank holds of its parameter."""
        if self._peers is None:
            return slice(part.start, part.stop)
        first = self._peers.span(part.rows, self._peers.rank).start
        here = part.held(self._peers, self._peers.rank)
        return slice(here.start - first, here.stop - first)

    def _nesterov(self, name: str, momentum: float) -> Tensor:
        gradient = self._matrices[name].grad
        if gradient is None:
            raise ValueError(f"{name} has no gradient")
        average, held = self._momenta[name], local(gradient)
        average.lerp_(held, 1.0 - momentum)
        if self._peers is not None:  # there is no room to spare, and nobody reads it again
            return held.lerp_(average, momentum)
        return held.lerp(average, momentum)


def _evened(wide: Tensor) -> Tensor:
    """Muon's update evened by NorMuon; the last column is the rows' variances, before and after."""
    variance = wide[..., -1:].clone()
    updates = even_rows(orthogonalise(wide[..., :-1]), variance)
    return torch.cat((updates, variance), dim=-1)
