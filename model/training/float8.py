"""Linear layers whose three products are taken in float8 while they learn.

Weights stay float32 and keep their names: a checkpoint does not know of it. The product forward has
both factors in e4m3, those backward the gradient in e5m2, which reaches further. Each factor is
scaled by its largest entry, so that this becomes the largest number of the format. Where nothing
is learnt (an evaluation) the layer is the plain one: what is judged is what is handed out.

``native`` is ``torch._scaled_mm``; ``emulated`` the same arithmetic by a float32 product of the
rounded factors, on any device; torchao's two are its own layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.families.protocol import MATRIX, LanguageModel

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
TILE = 16
"""The number that each side of a factor must be a multiple of."""
_LEAST_SCALED = 1e-12
_TORCHAO_RECIPES = {"torchao-tensorwise": "tensorwise", "torchao-rowwise": "rowwise"}

Multiply = Callable[[Tensor, Tensor, Tensor, Tensor, bool], Tensor]
"""(rows, depth) float8 by (depth, columns) float8, each with the factor that undoes its scale, to
bfloat16; True: sums may be kept in fewer bits."""
Layer = Callable[[nn.Linear], nn.Linear]
"""From a plain layer to one of its weights in float8."""


def layer_of(backend: str) -> Layer:
    """
    Raises:
        ImportError, and others: there is no such backend on this machine.
    """
    if backend in _TORCHAO_RECIPES:
        return _torchao_layer(backend)
    multiply = {"native": scaled_product, "emulated": emulated_product}[backend]
    return lambda plain: Float8Linear(plain, multiply)


def fitting_layers(model: LanguageModel) -> dict[str, nn.Linear]:
    """The layers that may be put into float8, by name: matrices of the blocks that tiles divide.
    Embeddings, heads and gates stay as they are."""
    groups = model.parameter_groups()
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
        and module.bias is None
        and (group := groups.get(f"{name}.weight")) is not None
        and group.kind == MATRIX
        and not any(side % TILE for side in module.weight.shape)
    }


def convert_layers(model: LanguageModel, backend: str) -> Callable[[], None]:
    """Puts the fitting layers into float8; gives what takes them out again.

    Raises:
        ValueError: no layer fits. And see ``layer_of``.
    """
    plain, make = fitting_layers(model), layer_of(backend)
    if not plain:
        raise ValueError(f"no matrix has both sides in multiples of {TILE}")

    def put(layers: dict[str, nn.Linear]) -> None:
        for name, layer in layers.items():
            parent, _, own = name.rpartition(".")
            setattr(model.get_submodule(parent), own, layer)

    put({name: make(layer) for name, layer in plain.items()})
    return lambda: put(plain)


@contextmanager
def within(model: LanguageModel, backend: str) -> Iterator[None]:
    """The fitting layers in float8, for the block."""
    take_out = convert_layers(model, backend)
    try:
        yield
    finally:
        take_out()


class Float8Linear(nn.Linear):
    """A plain layer's weights, multiplied in float8 where they learn."""

    def __init__(self, plain: nn.Linear, multiply: Multiply) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = plain.in_features, plain.out_features
        self.weight = plain.weight
        self.register_parameter("bias", None)
        self._multiply = multiply

    def forward(self, input: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return F.linear(input, self.weight)
        made: Tensor = _Product.apply(input.to(torch.bfloat16), self.weight, self._multiply)
        return made


class _Product(torch.autograd.Function):
    """x·Wᵀ, its gradients g·W and gᵀ·x."""

    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor, multiply: Multiply) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        left, left_undo = rounded(rows, E4M3)
        right, right_undo = rounded(weight, E4M3)
        context.save_for_backward(left, left_undo, right, right_undo)
        context.multiply, context.shape = multiply, x.shape
        made = multiply(left, right.t(), left_undo, right_undo, True)
        return made.view(*x.shape[:-1], len(weight))

    @staticmethod
    def backward(context: Any, *gradients: Any) -> tuple[Tensor, Tensor, None]:
        left, left_undo, right, right_undo = context.saved_tensors
        gradient, undo = rounded(gradients[0].reshape(-1, len(right)), E5M2)
        multiply = context.multiply
        of_x = multiply(gradient, _by_columns(right), undo, right_undo, False)
        of_weight = multiply(
            gradient.t().contiguous(), _by_columns(left), undo, left_undo, False
        ).float()
        return of_x.view(context.shape), of_weight, None


def rounded(values: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """``values`` row by row in float8, and the scalar that undoes their scale.

    What is not finite stays so: the step's gradients then show it.
    """
    largest = torch.finfo(dtype).max
    most = values.detach().abs().amax().float().clamp_min(_LEAST_SCALED)
    scaled = (values.float() * (largest / most)).clamp(-largest, largest)
    return scaled.to(dtype).contiguous(), most / largest


def _by_columns(matrix: Tensor) -> Tensor:
    """The same matrix, which lies column by column."""
    return matrix.t().contiguous().t()


def check_strides(left: Tensor, right: Tensor) -> None:
    """
    Raises:
        RuntimeError: the left factor does not lie row by row, or the right one not column by
            column. A processor multiplies them all the same, and a GPU's cuBLASLt does not.
    """
    if left.stride() != (left.shape[1], 1):
        raise RuntimeError(
            f"the left factor has strides {left.stride()}; it must be stored by rows"
        )
    if right.stride() != (1, right.shape[0]):
        raise RuntimeError(
            f"the right factor has strides {right.stride()}; it must be stored by columns"
        )


def scaled_product(
    left: Tensor, right: Tensor, left_undo: Tensor, right_undo: Tensor, fast: bool
) -> Tensor:
    check_strides(left, right)
    return torch._scaled_mm(
        left,
        right,
        scale_a=left_undo,
        scale_b=right_undo,
        out_dtype=torch.bfloat16,
        use_fast_accum=fast,
    )


def emulated_product(
    left: Tensor, right: Tensor, left_undo: Tensor, right_undo: Tensor, fast: bool
) -> Tensor:
    with torch.autocast(left.device.type, enabled=False):
        made = left.float() @ right.float()
    return (made * (left_undo * right_undo)).to(torch.bfloat16)


# -- torchao ------------------------------------------------------------------------------------


def _torchao_layer(backend: str, *, emulate: bool = False) -> Layer:
    """
    Args:
        emulate: torchao's own emulation, for a device without float8.
    """
    import dataclasses

    from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    from torchao.float8.float8_linear import Float8Linear as Theirs

    config = Float8LinearConfig.from_recipe_name(_TORCHAO_RECIPES[backend])
    config, learning = dataclasses.replace(config, emulate=emulate), _learning(Theirs)

    def layer(plain: nn.Linear) -> nn.Linear:
        [made] = convert_to_float8_training(nn.Sequential(plain), config=config)
        made.__class__ = learning
        return made

    return layer


def _learning(theirs: type) -> Any:
    """torchao's layer, which is the plain one where nothing is learnt, as ours."""

    class Learning(theirs):  # type: ignore[misc]
        def forward(self, input: Tensor) -> Tensor:
            if not torch.is_grad_enabled():
                return F.linear(input, self.weight)
            made: Tensor = super().forward(input.to(torch.bfloat16))
            return made

    return Learning
