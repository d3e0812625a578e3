"""The ladder of number formats: every rung forced, float8's arithmetic, what a trial decides."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from model.families import registry
from model.families.attention import EFFICIENT, FLASH, rejected_sdpa_kernels
from model.families.bd3lm.model import BlockDiffusion
from model.machine.distributed import World
from model.machine.precision import LossScale
from model.training import float8, number_format
from model.training.float8 import (
    E4M3,
    E5M2,
    Float8Linear,
    convert_layers,
    fitting_layers,
    layer_of,
    rounded,
    within,
)
from model.training.number_format import (
    BACKENDS,
    PLAIN,
    Chip,
    NumberFormat,
    choose_format,
    make_prover,
    prove_rung,
)
from tests.settings import changed
from trmcloud.core.errors import UsageError
from trmcloud.core.spec.settings import PhaseRecipe

NewRun = Callable[..., Any]
pytestmark = pytest.mark.usefixtures("keep_generator")

CPU = torch.device("cpu")
ALONE = World(0, 1, CPU)
H100 = Chip("NVIDIA H100 80GB HBM3", True, (9, 0))
A100 = Chip("NVIDIA A100-SXM4-80GB", True, (8, 0))
V100 = Chip("Tesla V100-SXM2-16GB", True, (7, 0))
HERE = Chip("this processor", on_gpu=False)


def lacking(*rungs: str) -> Callable[[str, torch.device], None]:
    """A fault in each of ``rungs``; the others are proven on this processor."""

    def proof(rung: str, device: torch.device) -> None:
        if rung in rungs:
            raise RuntimeError(f"no kernel for {rung}")
        if rung in ("native", "emulated", *PLAIN):
            prove_rung(rung, device)

    return proof


def asked(settings: PhaseRecipe, dtype: str, backend: str = "any") -> PhaseRecipe:
    return replace(settings, dtype=dtype, float8=backend)


def tries(*rungs: str) -> number_format.Try:
    return make_prover(CPU, ALONE, lacking(*rungs))


# -- the way down -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("faults", "float8_taken", "plain"),
    [
        ((), "torchao-tensorwise", "bfloat16"),
        (("torchao-tensorwise",), "torchao-rowwise", "bfloat16"),
        (("torchao-tensorwise", "torchao-rowwise"), "native", "bfloat16"),
        (BACKENDS, "", "bfloat16"),
        ((*BACKENDS, "bfloat16"), "", "float16"),
        ((*BACKENDS, "bfloat16", "float16"), "", "float32"),
    ],
)
def test_each_fault_leads_one_rung_down_and_is_named(
    settings: PhaseRecipe, faults: tuple[str, ...], float8_taken: str, plain: str
) -> None:
    made = choose_format(asked(settings, "auto"), H100, tries(*faults))
    assert (made.float8, made.plain) == (float8_taken, plain)
    assert made.left == tuple((rung, f"no kernel for {rung}") for rung in faults)


def test_a_machine_on_which_nothing_multiplies_is_told(settings: PhaseRecipe) -> None:
    with pytest.raises(UsageError, match="float32: no kernel for float32"):
        choose_format(asked(settings, "auto"), H100, tries(*BACKENDS, *PLAIN))


@pytest.mark.parametrize(
    ("chip", "plain", "left"),
    [
        (A100, "bfloat16", [("float8", "has compute capability 8.0, but float8 needs 8.9")]),
        (V100, "float16", [("float8", "7.0"), ("bfloat16", "bfloat16 needs 8.0")]),
        (HERE, "float32", [("float8", "emulate"), ("bfloat16", "slow"), ("float16", "slow")]),
    ],
)
def test_auto_takes_what_the_chip_has(
    settings: PhaseRecipe, chip: Chip, plain: str, left: list[tuple[str, str]]
) -> None:
    made = choose_format(asked(settings, "auto"), chip, tries())
    assert (made.float8, made.plain) == ("", plain)
    assert [name for name, _ in made.left] == [name for name, _ in left]
    assert all(part in why for (_, why), (_, part) in zip(made.left, left, strict=True))


@pytest.mark.parametrize(
    ("dtype", "backend", "chip", "why"),
    [
        ("float8", "any", A100, "NVIDIA A100-SXM4-80GB has compute capability 8.0"),
        ("float8", "native", A100, "float8 needs 8.9"),
        ("float8", "any", HERE, "could only emulate it"),
        ("bfloat16", "any", V100, "bfloat16 needs 8.0"),
    ],
)
def test_what_was_asked_for_by_name_is_refused_where_the_chip_has_it_not(
    settings: PhaseRecipe, dtype: str, backend: str, chip: Chip, why: str
) -> None:
    with pytest.raises(UsageError) as caught:
        choose_format(asked(settings, dtype, backend), chip, tries())
    assert why in str(caught.value)
    assert "--precision auto" in (caught.value.next_step or "")


def test_a_backend_that_was_asked_for_is_the_only_one(settings: PhaseRecipe) -> None:
    for backend in BACKENDS:
        assert choose_format(asked(settings, "float8", backend), H100, tries()).float8 == backend
        with pytest.raises(UsageError, match=f"{backend}: no kernel"):
            choose_format(asked(settings, "float8", backend), H100, tries(backend))
    assert choose_format(asked(settings, "float8", "emulated"), HERE, tries()).float8 == "emulated"
    assert choose_format(asked(settings, "float8", "native"), HERE, tries()).float8 == "native"


def test_a_rung_that_another_rank_lacks_is_left_by_all() -> None:
    class OfTwo(World):
        def largest(self, values: Any) -> list[int]:
            return [1 for _ in values]

    attempt = make_prover(CPU, OfTwo(0, 2, CPU), lacking())
    assert attempt("float32") == "another rank does not have it"


def test_a_missing_package_is_named() -> None:
    def proof(rung: str, device: torch.device) -> None:
        raise ModuleNotFoundError("No module named 'torchao'", name="torchao")

    assert make_prover(CPU, ALONE, proof)("torchao-rowwise") == "torchao is not installed"


def test_a_product_that_is_wrong_is_no_rung(monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(*given: Any) -> Tensor:
        return 2 * float8.emulated_product(*given)

    monkeypatch.setattr(float8, "scaled_product", twice)
    with pytest.raises(RuntimeError, match="differs from float32's by"):
        prove_rung("native", CPU)


# -- float8's own arithmetic --------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [E4M3, E5M2])
def test_the_largest_entry_becomes_the_formats_largest_number(dtype: torch.dtype) -> None:
    values = torch.linspace(-3.0, 7.0, 64).view(4, 16)
    low, undo = rounded(values, dtype)
    assert low.float().max() == torch.finfo(dtype).max
    assert torch.allclose(low.float() * undo, values, rtol=0.13, atol=0.01)
    nothing, undo = rounded(torch.zeros(4, 16), dtype)
    assert not (nothing.float() * undo).any()
    for bad in (math.nan, math.inf):
        low, undo = rounded(torch.full((4, 16), bad), dtype)
        assert not (low.float() * undo).isfinite().any()


def test_native_and_emulated_products_are_one_arithmetic() -> None:
    torch.manual_seed(3)
    x, weight = torch.randn(2, 32, 64), nn.Parameter(torch.randn(48, 64))
    grown = []
    for backend in ("native", "emulated"):
        layer = nn.Linear(64, 48, bias=False)
        layer.weight = nn.Parameter(weight.detach().clone())
        own = x.clone().requires_grad_()
        made = layer_of(backend)(layer)(own)
        made.float().pow(2).sum().backward()
        grown.append((made.detach().float(), own.grad, layer.weight.grad))
    for one, other in zip(*grown, strict=True):
        assert one is not None
        assert other is not None
        assert one.dtype == torch.float32
        assert (one - other).norm() < 0.01 * other.norm()


def test_a_factor_that_lies_the_wrong_way_is_refused() -> None:
    torch.manual_seed(3)
    left, _ = rounded(torch.randn(32, 64), E4M3)
    right, _ = rounded(torch.randn(64, 48), E4M3)
    one = torch.ones(())
    with pytest.raises(RuntimeError, match="the right factor has strides"):
        float8.scaled_product(left, right, one, one, False)
    by_columns, _ = rounded(torch.randn(48, 64), E4M3)
    with pytest.raises(RuntimeError, match="the left factor has strides"):
        float8.scaled_product(left.t().contiguous().t(), by_columns.t(), one, one, False)
    assert float8.scaled_product(left, by_columns.t(), one, one, False).shape == (32, 48)


@pytest.mark.parametrize("family", ["trm", "gpt", "nanochat", "bd3lm"])
def test_the_blocks_matrices_alone_are_put_in_and_out(settings: PhaseRecipe, family: str) -> None:
    own = {} if family == "trm" else {"mlp": "gelu"}
    values = {"value_embeddings": True} if family == "nanochat" else {}
    shape = changed(settings, family=family, **own, **values)
    model = registry.build(shape, CPU)
    model.initialise(7)
    names = list(model.state_dict())
    weights = {name: each.data_ptr() for name, each in model.named_parameters()}
    found = fitting_layers(model)
    assert found
    assert all(name.startswith("blocks.") and "value_gate" not in name for name in found)
    with within(model, "emulated"):
        assert all(isinstance(model.get_submodule(name), Float8Linear) for name in found)
        assert list(model.state_dict()) == names
        assert {n: each.data_ptr() for n, each in model.named_parameters()} == weights
    assert {name: model.get_submodule(name) for name in found} == found


def test_what_is_evaluated_takes_no_float8(settings: PhaseRecipe) -> None:
    model = registry.build(replace(settings, dtype="bfloat16"), CPU)
    model.initialise(7)
    for weight in model.parameters():
        weight.data.add_(0.02 * torch.randn_like(weight))
    ids = torch.arange(32).view(2, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with torch.no_grad():
            plain = model.evaluate(ids, ids)
            with within(model, "emulated"):
                assert torch.equal(model.evaluate(ids, ids), plain)
        with within(model, "emulated"):
            assert not torch.equal(model.evaluate(ids, ids), plain)


def test_a_compiled_block_learns_in_float8_as_one_that_is_not(settings: PhaseRecipe) -> None:
    shape = changed(settings, family="gpt", dtype="bfloat16", depth=2)
    gradients = []
    for compiled in (False, True):
        model = registry.build(shape, CPU)
        model.initialise(7)
        convert_layers(model, "emulated")
        if compiled:
            for block in model.blocks:  # type: ignore[union-attr]
                block.compile(backend="aot_eager")
        ids = torch.arange(32).view(2, 16)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            model.loss(ids, ids.roll(-1, 1)).loss.backward()
        gradients.append([p.grad for p in model.parameters() if p.grad is not None])
    for one, other in zip(*gradients, strict=True):
        assert torch.allclose(one, other, atol=1e-2 * float(other.abs().max()) + 1e-8)


def test_torchao_takes_the_same_products() -> None:
    pytest.importorskip("torchao")
    for backend in ("torchao-tensorwise", "torchao-rowwise"):
        prove_rung(backend, CPU)
        layer = layer_of(backend)(nn.Linear(64, 48, bias=False))
        assert list(layer.state_dict()) == ["weight"]
        with torch.no_grad():
            x = torch.randn(32, 64)
            assert torch.equal(layer(x), nn.functional.linear(x, layer.weight))


# -- a training ---------------------------------------------------------------------------------


@pytest.fixture
def on_h100(monkeypatch: pytest.MonkeyPatch) -> None:
    """This processor passes for a GPU with float8 that has no torchao."""
    monkeypatch.setattr(Chip, "of", classmethod(lambda cls, device: H100))
    monkeypatch.setattr(
        number_format, "prove_rung", lacking("torchao-tensorwise", "torchao-rowwise")
    )


def rungs(run: Any) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = run.metrics("precision")
    return made


@pytest.mark.parametrize("family", ["trm", "gpt", "bd3lm"])
def test_families_train_in_emulated_float8(new_run: NewRun, family: str) -> None:
    run = new_run(family=family, dtype="float8", float8="emulated", vocab_size=301, steps=3)
    assert run.train_here() == "finished", run.heartbeat.message
    [line] = rungs(run)
    assert (line["taken"], line["why"]) == ("float8 (emulated)", "asked for")
    assert run.manifests()[3].settings["dtype"] == "float8"


@pytest.mark.parametrize(
    ("seconds", "taken"), [((1.0, 0.9), "float8 (native)"), ((1.0, 0.98), "bfloat16")]
)
def test_float8_is_taken_where_the_trial_finds_it_faster(
    new_run: NewRun,
    on_h100: None,
    monkeypatch: pytest.MonkeyPatch,
    seconds: tuple[float, float],
    taken: str,
) -> None:
    real, calls = number_format.Trial.step_s, []

    def timed(self: number_format.Trial, steps: int = number_format.STEPS) -> float:
        real(self, steps=1)
        is_float8 = any(isinstance(each, Float8Linear) for each in self.model.modules())
        calls.append((steps, is_float8))
        return seconds[is_float8]

    monkeypatch.setattr(number_format.Trial, "step_s", timed)
    run = new_run(family="gpt", dtype="auto", steps=1000, eval_every=4, save_every=4)
    assert run.train_here(TRMCLOUD_REPLAY_DECISION="1:1:4") == "landed_deadline"
    assert calls == [(1, False), (20, False), (20, True)]
    [line] = rungs(run)
    assert line["taken"] == taken
    assert ("it must have more than 1.03" in line["why"]) is (taken == "bfloat16")
    assert [name for name, _ in line["left"]] == ["torchao-tensorwise", "torchao-rowwise"]
    kept = run.manifests()[4]
    assert kept.extra["precision"]["dtype"] == kept.settings["dtype"] == line["dtype"]
    # What the trial found is taken up, not found anew, by a run that goes on.
    assert run.train_here(attempt=2, TRMCLOUD_REPLAY_DECISION="1:1:6") == "landed_deadline"
    assert len(calls) == 3
    assert rungs(run)[-1]["taken"] == taken


def test_a_trial_changes_nothing_of_a_training(
    new_run: NewRun, on_h100: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(number_format, "PAYS", math.inf)
    monkeypatch.setattr(number_format, "_SHARE", 1e9)
    tried = new_run("tried", family="gpt", dtype="auto", steps=4)
    plain = new_run("plain", family="gpt", dtype="bfloat16", steps=4)
    assert tried.train_here() == plain.train_here() == "finished"
    assert rungs(tried)[0]["plain_s"] > 0
    assert not rungs(plain)
    assert tried.weights_at(4) == plain.weights_at(4)


def test_a_trial_that_would_take_too_long_is_none(new_run: NewRun, on_h100: None) -> None:
    run = new_run(family="gpt", dtype="auto", steps=5)
    assert run.train_here() == "finished"
    [line] = rungs(run)
    assert line["taken"] == "bfloat16"
    assert "more than 5% of the time left" in line["why"]


def test_a_backend_that_fails_in_its_trial_is_left_for_the_next(
    new_run: NewRun, on_h100: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*given: Any) -> Tensor:
        raise RuntimeError("CUBLAS_STATUS_NOT_SUPPORTED\nwhen calling cublasLtMatmul")

    monkeypatch.setattr(number_format, "_SHARE", 1e9)
    monkeypatch.setattr(number_format, "prove_rung", lambda rung, device: None)
    monkeypatch.setattr(float8, "scaled_product", broken)
    monkeypatch.setattr(float8, "_torchao_layer", lambda backend: broken)
    run = new_run(family="gpt", dtype="auto", steps=4)
    assert run.train_here() == "finished"
    [line] = rungs(run)
    assert line["taken"] == "bfloat16"
    assert dict(line["left"]) == dict.fromkeys(BACKENDS, "CUBLAS_STATUS_NOT_SUPPORTED")
    assert "the trial of float8 failed" in line["why"]


def test_a_micro_batch_that_no_tile_divides_takes_no_float8(settings: PhaseRecipe) -> None:
    odd = replace(settings, batch=1, sequence=20, dtype="auto")
    made = NumberFormat(odd, ALONE, chip=H100, prove=lacking())
    assert (made.descent.float8, made.settings.dtype) == ("", "bfloat16")
    assert made.descent.left[0].why == "a micro-batch of 20 tokens is not a multiple of 16"


def test_float16_is_gone_on_with_bit_by_bit(new_run: NewRun) -> None:
    LossScale.GROW_AFTER, before = 3, LossScale.GROW_AFTER
    try:
        whole = new_run("whole", dtype="float16", steps=12, save_every=6, eval_every=6)
        parts = new_run("parts", dtype="float16", steps=12, save_every=6, eval_every=6)
        assert whole.train_here(TRMCLOUD_REPLAY_DECISION="9:3:12") == "finished"
        assert parts.train_here(TRMCLOUD_REPLAY_DECISION="9:3:6") == "landed_deadline"
        assert parts.train_here(attempt=2, TRMCLOUD_REPLAY_DECISION="9:3:12") == "finished"
    finally:
        LossScale.GROW_AFTER = before
    assert whole.weights_at(6) == parts.weights_at(6)
    assert whole.weights_at(12) == parts.weights_at(12)


def test_an_overflow_of_float16_is_no_update_and_no_alarm(
    new_run: NewRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LossScale, "START", 2.0**40)
    run = new_run(dtype="float16", steps=40, log_every=1)
    assert run.train_here() == "finished"
    scales = [line["loss_scale"] for line in run.metrics("scale")]
    assert scales == [2.0 ** (39 - n) for n in range(len(scales))]
    assert len(scales) > 5
    assert not run.metrics("skip")
    assert len(run.metrics("train")) == 40 - len(scales)
    assert all(line["grad_norm"] is not None for line in run.metrics("train"))


def test_the_scale_of_a_training_without_one_is_not_taken_up() -> None:
    scale = LossScale.of("float16")
    scale.load_json(LossScale.of("bfloat16").to_json())
    assert scale == LossScale.of("float16")
    scale.load_json({"scale": 1.0, "good_steps": 9})
    assert scale == LossScale.of("float16"), "saved before that was told"
    scale.load_json({"scale": 512.0, "good_steps": 9})
    assert (scale.scale, scale.good_steps) == (512.0, 9)


# -- attention ----------------------------------------------------------------------------------


@pytest.fixture
def flex_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch 2.13's does backward on a processor; 2.9's works there."""

    def fails(*given: Any, **named: Any) -> Tensor:
        raise NotImplementedError("flex_attention has no backward pass on this device")

    monkeypatch.setattr("model.families.attention.flex_attention", fails)
    monkeypatch.setattr(BlockDiffusion, "_wants_rule", lambda self, device: True)


@pytest.mark.usefixtures("flex_fails")
def test_flex_attention_that_fails_is_left_for_a_table(settings: PhaseRecipe) -> None:
    shape = changed(settings, family="bd3lm", mlp="gelu", width=32, head_dim=16)
    model = registry.build(shape, CPU)
    model.initialise(7)
    [left] = model.settle_attention()
    assert left.name == "FlexAttention"
    assert left.why.endswith("SDPA with a mask table is used instead")
    assert len(left.why) > 40
    ids = torch.arange(32).view(2, 16)
    model.loss(ids, ids).loss.backward()
    narrow = registry.build(replace(shape, head_dim=8), CPU)
    [left] = narrow.settle_attention()
    assert "does not support heads of 8, only of 16 or more" in left.why


def test_sdpas_kernels_are_left_with_what_torch_says_of_them() -> None:
    import warnings

    def none() -> bool:
        warnings.warn(
            "Flash attention only supports sm80 (Triggered internally at x)", stacklevel=1
        )
        return False

    left = rejected_sdpa_kernels([(FLASH, none), (EFFICIENT, lambda: True)])
    assert left == [(FLASH, "Flash attention only supports sm80")]
    assert [name for name, _ in rejected_sdpa_kernels([(FLASH, none), (EFFICIENT, none)])] == [
        FLASH,
        EFFICIENT,
    ]
    assert rejected_sdpa_kernels([(FLASH, lambda: True)]) == []


@pytest.mark.usefixtures("flex_fails")
def test_the_attention_left_is_in_metrics(new_run: NewRun) -> None:
    run = new_run(family="bd3lm", mlp="gelu", vocab_size=301, steps=2)
    assert run.train_here() == "finished"
    [line] = run.metrics("attention")
    assert line["left"][0][0] == "FlexAttention"


# -- several ranks, which test_data trains, and a whole recipe ------------------------------------

TWO_H100 = """
import os
from model.training import number_format
number_format.Chip.of = classmethod(lambda cls, device: number_format.Chip("H100", True, (9, 0)))
number_format.STEPS, number_format._SHARE = 3, 1e9
proof = number_format.prove_rung
def prove(rung, device):
    if rung == "torchao-tensorwise" or (rung == "torchao-rowwise" and os.environ["RANK"] == "1"):
        raise RuntimeError("no such kernel")
    if not rung.startswith("torchao"):
        proof(rung, device)
number_format.prove_rung = prove
"""


def test_a_small_recipe_learns_in_emulated_float8_as_in_bfloat16(new_run: NewRun) -> None:
    from trmcloud.adapters.files import load_recipe

    small = load_recipe("gpt350m").in_small()
    shape = small.resolve("train", hardware="local", gpus=1).to_json()
    keys = ("family", "depth", "width", "head_dim", "hidden", "tied", "optimizer", "matrix_lr")
    same = {**{key: shape[key] for key in keys}, "embedding_lr": 3e-3, "head_lr": 3e-3}
    nats = []
    for name, dtype, backend in (("b", "bfloat16", "any"), ("e", "float8", "emulated")):
        run = new_run(name, **same, dtype=dtype, float8=backend, steps=60, eval_every=60)
        assert run.train_here() == "finished"
        nats.append(run.metrics("eval")[-1]["val_step_losses"][-1])
    assert nats[0] < 4.0, "5.7 is chance"
    assert nats[1] == pytest.approx(nats[0], rel=0.01)
