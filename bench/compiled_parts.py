"""Compiles for a GPU that is not there what the trainer compiles of a recipe: ``python -m
bench.compiled_parts RECIPE``, under the library of ``absent_driver``.

The model is the recipe's own, made of tensors that have shapes and no content, and what it is given
is the trainer's own ``warm_up``: a pass forward and backward, an evaluation. Inductor compiles each
graph and Triton each kernel as they would; in place of the compiled graph its operators then say of
which shapes the results are, so that the pass goes on. One JSON object a graph is printed.
"""

from __future__ import annotations

import copy
import json
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, redirect_stdout
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
import torch._inductor.compile_fx as inductor
from torch import nn
from torch._dynamo.utils import counters
from torch._inductor import config
from torch._inductor.async_compile import CompiledTritonKernels
from torch._inductor.codecache import PyCodeCache
from torch._inductor.fx_passes import pad_mm
from torch._inductor.runtime.triton_heuristics import CachingAutotuner
from torch._subclasses.fake_tensor import FakeTensorMode

from bench import absent_driver
from bench.cubins import Graph, cubin_of
from model.families import masked_diffusion, registry
from model.machine.distributed import World
from model.training.number_format import reason_of
from model.training.stepping import warm_up
from trmcloud.adapters.files import load_recipe
from trmcloud.core.errors import UsageError
from trmcloud.core.spec.settings import AUTO, PhaseRecipe

_PARTS = {"forward": "block", "_token_losses": "head"}
"""By the function that is compiled."""
_DEFINED = re.compile(r"async_compile\.triton\('(\w+)'")
_FRAME = re.compile(r'File ".*[/\\]model[/\\].*", line \d+, in (\w+)')


class Missing(Exception):
    """A kernel that no cubin was made of."""


class Compiler:
    """Stands around Inductor's: lets it compile, and writes down what came of it."""

    def __init__(self, told: Callable[[Graph], None]) -> None:
        self._told = told
        self._inner, self._outer = inductor.compile_fx_inner, inductor.compile_fx
        self._now = Graph("", "")

    def loaded(self, name: str, content: bytes, files: Any) -> tuple[int, int]:
        made = cubin_of(name, content, files, absent_driver.CAPABILITY)
        self._now.cubins.append(made)
        return made.registers, made.stack_bytes

    def whole(self, module: Any, inputs: Any, *rest: Any, **options: Any) -> Any:
        """In place of ``compile_fx``."""
        return self._outer(module, inputs, *rest, **{**options, "inner_compile": self.graph})

    def graph(self, module: Any, inputs: Sequence[Any], **options: Any) -> Any:
        """In place of ``compile_fx_inner``; gives what takes the compiled graph's place.

        Raises:
            Missing: a kernel that the graph calls was not compiled. And what Inductor raises.
        """
        made = self._now
        made.part, made.way = _part_of(module), _way_of(options)
        shapes = copy.deepcopy(module)  # Inductor writes in its own
        for known in (CompiledTritonKernels, PyCodeCache):
            known.cache_clear()  # or a kernel that another graph had is not compiled for this one
        compiled: Any = self._inner(module, inputs, **options)
        made.kernels = sorted(set(_DEFINED.findall(compiled.source_code)))
        if missing := set(made.kernels) - {each.kernel for each in made.cubins}:
            raise Missing(f"no cubin was made of {', '.join(sorted(missing))}")
        self._told(made)
        self._now = Graph("", "")

        def run(given: list[Any]) -> Any:
            taken = list(given)
            given.clear()
            return shapes(*taken)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    def watch(self, compile_one: Callable[..., Any]) -> Callable[..., Any]:
        """Around what compiles one configuration: Inductor goes on where another does."""

        def watched(tuner: Any, configuration: Any) -> Any:
            try:
                return compile_one(tuner, configuration)
            except Exception as error:
                self._now.refused.append(f"{configuration}: {reason_of(error)}")
                raise

        return watched


def compile_parts(settings: PhaseRecipe, compiler: Compiler) -> None:
    """
    Raises:
        UsageError: a part that cannot be compiled, or not in one piece.
        torch._dynamo.exc.TorchDynamoException: the same, where attention is settled.
    """
    torch._dynamo.reset()
    world = World(0, 1, torch.device("cuda", 0))
    with torch.device("meta"):
        model = registry.build(settings, torch.device("meta"))
    with ExitStack() as stack:
        for change in (
            config.patch(
                {
                    "compile_threads": 1,
                    "fx_graph_cache": False,
                    "use_static_cuda_launcher": False,  # which loads by the driver itself
                }
            ),
            patch.object(inductor, "compile_fx", compiler.whole),
            # Whether a product is faster padded only a GPU's clock can tell.
            patch.object(pad_mm, "get_cached_should_pad", lambda key: False),
            patch.object(
                CachingAutotuner,
                "_precompile_config",
                compiler.watch(CachingAutotuner._precompile_config),
            ),
            # Its proof holds numbers beside SDPA's, and there are none.
            patch.object(masked_diffusion, "why_not_flex", lambda *asked: ""),
            FakeTensorMode(),
        ):
            stack.enter_context(change)
        _place(model, world.device)
        model.compile_parts()
        if left := model.settle_attention():
            raise UsageError(f"attention is left: {left[0].name}: {left[0].why}")
        warm_up(model, model, settings, world)
    if broken := counters["graph_break"]:
        raise UsageError(f"a part was compiled in pieces: {'; '.join(map(str, broken))}")


def _place(model: nn.Module, device: torch.device) -> None:
    """Gives it tensors without content on ``device``: ``to`` would copy, and there is nothing."""
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for name, tensor in list(tensors.items()):
                if tensor is None:
                    continue
                empty = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
                is_weight = isinstance(tensor, nn.Parameter)
                tensors[name] = nn.Parameter(empty) if is_weight else empty  # type: ignore[assignment]


def _part_of(module: Any) -> str:
    """
    Raises:
        LookupError: a graph of nothing that the trainer is known to compile.
    """
    for node in module.graph.nodes:
        if frames := _FRAME.findall(node.meta.get("stack_trace") or ""):
            if frames[0] not in _PARTS:
                raise LookupError(f"{frames[0]} is no part, or one compiled in pieces")
            return _PARTS[frames[0]]
    raise LookupError("a graph that no line of the models leads to")


def _way_of(options: dict[str, Any]) -> str:
    if options.get("is_backward"):
        return "backward"
    return "evaluation" if options.get("is_inference") else "forward"


def settings_of(name: str) -> PhaseRecipe:
    """The recipe's first phase on the hardware that it names; ``auto`` as bfloat16, whose products
    the trainer falls back to."""
    recipe = load_recipe(name)
    machine = recipe.reference_hardware
    gpus = int(machine.partition("x")[0])
    made = recipe.resolve(next(iter(recipe.phases)), hardware=machine, gpus=gpus)
    return replace(made, dtype="bfloat16") if made.dtype == AUTO else made


def main() -> int:
    told = sys.stdout

    def tell(graph: Graph) -> None:
        print(json.dumps(graph.to_json()), file=told, flush=True)

    compiler = Compiler(tell)
    absent_driver.stand_in(compiler.loaded)
    with redirect_stdout(sys.stderr):  # of a kernel that fails Triton prints all there is
        try:
            compile_parts(settings_of(sys.argv[1]), compiler)
        except Exception as error:  # of a compiler, of any kind: it is what is looked for
            print(_cause(error), file=sys.stderr)
            return 1
    return 0


def _cause(error: BaseException) -> str:
    """What lies below what the trainer and torch made of it."""
    cause = error.__context__ or error
    while isinstance(inner := getattr(cause, "inner_exception", None), BaseException):
        cause = inner
    return f"{type(cause).__name__}: {reason_of(cause)}"


if __name__ == "__main__":
    sys.exit(main())
