"""FLOPs and parameters against torch's own counter, on modules of the recipes' shapes."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.settings import changed
from trmcloud.adapters.files import load_recipe
from trmcloud.core.spec.settings import PhaseRecipe
from trmcloud.core.spec.work import BACKWARD_FACTOR, muon_flops

torch = pytest.importorskip("torch")
nn = torch.nn


def settings_of(name: str) -> PhaseRecipe:
    recipe = load_recipe(name)
    phase = next(iter(recipe.phases))
    gpus = int((recipe.reference_hardware or "1x").partition("x")[0])
    return recipe.resolve(phase, hardware=recipe.reference_hardware, gpus=gpus)


def counted(run: Any) -> int:
    """FLOPs of ``run()`` forward and backward, attention as two matmuls over the whole square."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        run().backward()
    return int(counter.get_total_flops())


GROUPED = {"kv_heads": 4, "positions": "learned", "windows": "SSSL"}


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("gpt350m", {}),
        ("gpt350m", {**GROUPED, "value_embeddings": True, "mlp": "gelu"}),
        ("d24", {}),
        ("d64", {}),
        ("speedrun", {}),
        ("speedrun", {"kv_heads": 3}),
        ("shakespeare", {}),
        # On [noisy ; clean], judged on the noisy half; hdp's net is bd3lm's.
        ("bd3lm", {}),
        ("bd3lm", {"tied": True, "mlp": "swiglu"}),
        ("hdp", {}),
        ("hdp", {"question_tokens": 64, "plan_tokens": 48, "execution_tokens": 400}),
    ],
)
def test_a_model_is_the_trainers_own(name: str, changes: dict[str, Any]) -> None:
    registry = pytest.importorskip("model.families.registry")
    s = dataclasses.replace(settings_of(name), **{"dtype": "bfloat16", **changes})
    meta = torch.device("meta")
    with meta:
        model = registry.build(s, meta)
        ids = torch.zeros((1, s.sequence), dtype=torch.long)
        flops = counted(lambda: model.loss(ids, ids).loss)
    work = s.work()
    assert flops == pytest.approx(s.sequence * work.train_flops, rel=0.01)
    assert work.parameters == sum(p.numel() for p in model.parameters())


def test_in_segments_the_share_of_attention_is_the_masks() -> None:
    plan_diffusion = pytest.importorskip("model.families.hdp.model")
    block_mask = pytest.importorskip("model.families.masked_diffusion")
    s = changed(
        settings_of("hdp"), sequence=96, question_tokens=16, plan_tokens=32, execution_tokens=48
    )
    model = plan_diffusion.build(dataclasses.replace(s, depth=1), torch.device("cpu"))
    seen = block_mask.table(block_mask.RowPlaces(model.seen_of, 32 + 48))
    work = s.work()
    assert work.positions * s.sequence == len(seen)
    assert work.mask_share == pytest.approx(float(seen.float().mean()))


@pytest.mark.parametrize("control", [False, True])
def test_trm_matches_the_real_module(control: bool) -> None:
    trm = pytest.importorskip("model.families.trm.model")
    # Of twelve equal layers three: the counter takes long, and the head is a larger share of it.
    s = changed(settings_of("trm"), control=control, depth=3)
    with torch.device("meta"):
        model = trm.TRM(trm.Shape.of(s))
        ids = torch.zeros((1, s.sequence), dtype=torch.long)
        flops = counted(lambda: model.losses(ids, ids).sum())
    work = s.work()
    assert flops == pytest.approx(s.sequence * work.train_flops, rel=0.01)
    assert work.parameters == sum(p.numel() for p in model.parameters())


def test_the_guides_models_have_their_true_sizes() -> None:
    assert settings_of("d64").work().parameters == pytest.approx(12.9e9, rel=0.01)
    assert settings_of("d24").work().parameters == pytest.approx(0.68e9, rel=0.01)
    assert settings_of("gpt350m").work().parameters == pytest.approx(354e6, rel=0.01)
    assert settings_of("gpt350m").work().train_flops == pytest.approx(2.43e9, rel=0.01)


def test_trm_costs_what_its_formula_says() -> None:
    s = settings_of("trm")
    layers, width, n, loops, vocab, t = 12, 768, 4, 2, 65536, 1024
    formula = 6 * (16 * layers * width**2 * n * (loops + 1) + n * vocab * width)
    formula += 12 * layers * width * t * n * (loops + 1)
    assert s.work().train_flops == pytest.approx(formula)
    assert BACKWARD_FACTOR == 3


def test_newton_schulz_is_counted_per_matrix() -> None:
    s = dataclasses.replace(settings_of("trm"), depth=1, width=128, head_dim=128)
    square = 5 * 6 * 128**3
    wide = 5 * (4 * 128 * 128 * 512 + 2 * 128**3)
    assert muon_flops(s.work()) == 4 * square + 3 * wide
