"""A price for what the user trains: ``plan --hf CONFIG`` and ``plan -- COMMAND``."""

from __future__ import annotations

import json
import math
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import bench.finetune
from tests.documents import document_in
from trmcloud.api import Home
from trmcloud.cli.commands import plan as plan_command
from trmcloud.core.contract.command_terms import MeasuredSteps
from trmcloud.core.contract.records import finite
from trmcloud.core.errors import BudgetRefused, DoesNotFit, NotFoundError, UsageError
from trmcloud.core.planner.command_outlook import CommandProbe
from trmcloud.core.planner.finetuning import (
    FACTORS,
    SIGMAS,
    Finetuning,
    need_of,
    predicted,
    seconds_per_token,
)
from trmcloud.core.planner.roofline import P90_SIGMAS
from trmcloud.core.spec.hf_models import read_config
from trmcloud.io.files import write_atomic
from trmcloud.operations.plans import measurements
from trmcloud.operations.plans.hf_names import read_model

LLAMA_8B = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
    "vocab_size": 128256, "tie_word_embeddings": False,
}  # fmt: skip
MIXTRAL = {
    **LLAMA_8B, "model_type": "mixtral", "vocab_size": 32000, "num_local_experts": 8,
    "num_experts_per_tok": 2,
}  # fmt: skip
GPT2 = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257}
PYTHON = ("python", "train.py")

app = typer.Typer()
app.command()(plan_command.plan)


@pytest.fixture(autouse=True)
def own_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("TRMCLOUD_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "other file.py"):
        (tmp_path / name).touch()
    return tmp_path / "home"


def run(*arguments: str) -> Any:
    result = CliRunner().invoke(app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def config(folder: Path, data: object = LLAMA_8B) -> str:
    path = folder / "config.json"
    path.write_text(json.dumps(data))
    return str(path)


# -- a model's size --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "billions"),
    [(LLAMA_8B, 8.03), (MIXTRAL, 46.7), (GPT2, 0.1235), ({"text_config": LLAMA_8B}, 8.03)],
)
def test_parameters_are_those_that_the_model_is_known_for(data: Any, billions: float) -> None:
    assert read_config(data, "x").parameters / 1e9 == pytest.approx(billions, rel=0.005)


def test_of_experts_a_token_passes_through_some() -> None:
    model = read_config(MIXTRAL, "x")
    assert (model.active_parameters + 2 * 32000 * 4096) / 1e9 == pytest.approx(12.9, rel=0.01)
    assert model.work(2048).matmul_flops == pytest.approx(2 * model.active_parameters)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({k: v for k, v in LLAMA_8B.items() if k != "hidden_size"}, "it has no hidden_size"),
        ({**LLAMA_8B, "hidden_size": "large"}, "not a valid size"),
        ({**LLAMA_8B, "num_hidden_layers": True}, "not a valid size"),
        ({**LLAMA_8B, "vocab_size": -1}, "not a valid size"),
        ({**LLAMA_8B, "num_key_value_heads": 64}, "64 heads of keys for 32"),
        ([1], "the config.json of a model must be an object"),
    ],
)
def test_a_config_that_describes_no_model_is_refused(data: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        read_model(Path(config(tmp_path, data)))
    assert "\n" not in caught.value.what
    assert caught.value.where.endswith("config.json")


def test_a_folder_holds_its_config_and_what_is_none_says_so(tmp_path: Path) -> None:
    config(tmp_path)
    assert read_model(tmp_path).kind == "llama"
    for text in ("{", "[" * 100_000):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(UsageError, match="it is not JSON"):
            read_model(tmp_path)
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_model(tmp_path / "elsewhere")


# -- time and memory -------------------------------------------------------------------------------


def test_published_fine_tunings_are_predicted_as_the_page_says() -> None:
    rows = bench.finetune.judged()
    shipped = bench.finetune.factors(rows)
    assert shipped == pytest.approx(dict(FACTORS), rel=0.02)
    errors: dict[str, list[float]] = {}
    for row in rows:
        others = bench.finetune.factors([each for each in rows if each.source != row.source])
        errors.setdefault(row.kind, []).append(row.modelled + math.log(others.get(row.kind, 1)))
    ours = [abs(math.expm1(e)) for kind in errors if kind != "grpo" for e in errors[kind]]
    assert len(ours) == 48
    assert sorted(ours)[24] <= 0.15
    assert sorted(ours)[42] <= 0.40
    inside = [
        abs(e) <= P90_SIGMAS * SIGMAS[kind] for kind in errors if kind != "grpo"
        for e in errors[kind]
    ]  # fmt: skip
    assert 0.75 <= sum(inside) / len(inside) <= 0.88
    limits = {"lora": 0.2, "qlora": 0.15, "transformers": 0.55, "vision": 0.17}
    for kind, limit in limits.items():
        size = sorted(abs(math.expm1(each)) for each in errors[kind])
        assert size[len(size) // 2] <= limit, kind
        inside = [abs(each) <= P90_SIGMAS * SIGMAS[kind] for each in errors[kind]]
        assert sum(inside) / len(inside) >= 0.75, kind
    held = [row.holds for row in rows if row.peak_gb is not None]
    assert len(held) == 34
    assert sum(held) / len(held) >= 0.8


def test_training_all_weights_with_transformers_has_a_speed_of_its_own() -> None:
    """Compiled, with the loss in pieces, it is torchtune's."""
    model = read_config(LLAMA_8B, "x")
    stock, compiled = (Finetuning("full", is_compiled=each) for each in (False, True))
    assert (stock.kind, compiled.kind) == ("transformers", "full")
    assert SIGMAS["transformers"] > SIGMAS["full"]
    seconds = [predicted(model, how, "H100-SXM", 8)[1] for how in (stock, compiled)]
    assert seconds[0] > 1.3 * seconds[1]


def test_frozen_weights_take_less_time_and_memory_than_trained_ones() -> None:
    model = read_config(LLAMA_8B, "x")
    full, lora = Finetuning("full"), Finetuning("lora")
    times = [seconds_per_token(model, how, "H100-SXM", 1) for how in (lora, full)]
    assert 0.6 < times[0] / times[1] < 0.9
    four = Finetuning("lora", bits=4)
    needs = [need_of(model, how, 1, 80.0).expected for how in (four, lora, full)]
    assert needs == sorted(needs)
    assert needs[0] < 24 < needs[2]
    shared = [need_of(model, full, gpus, 80.0).expected for gpus in (1, 8)]
    assert shared[1] < shared[0] / 4


def test_drawing_completions_takes_time_that_grows_with_their_length() -> None:
    model = read_config(LLAMA_8B, "x")
    short, long = (
        seconds_per_token(model, Finetuning("grpo", completion=n), "H100-SXM", 8)
        for n in (64, 1024)
    )
    assert seconds_per_token(model, Finetuning("full"), "H100-SXM", 8) < short < long
    p10, p50, p90 = predicted(model, Finetuning("grpo"), "H100-SXM", 8)
    assert p90 / p50 == pytest.approx(p50 / p10) == pytest.approx(math.exp(P90_SIGMAS * 0.7))


# -- the command -----------------------------------------------------------------------------------


def test_a_fine_tunings_plan_fits_a_screen_and_says_what_measures_it(tmp_path: Path) -> None:
    config(tmp_path)
    for method in ("lora", "full", "grpo"):
        lines = run("--hf", "config.json", "--method", method).stdout.splitlines()
        assert len(lines) <= 23
        assert max(map(len, lines)) <= 80, max(lines, key=len)
        text = "\n".join(lines)
        assert "llama, 8.03B parameters" in text
        assert "Recommended: " in text
        assert ("--probe 30 --budget" in text) == (method == "grpo")
        assert ("--write train.py" in text) == (method != "grpo")
        assert ("from one source" in text) == (method == "grpo")


def test_a_fine_tunings_json_has_ranges_and_dollars_of_hours_times_rate(tmp_path: Path) -> None:
    words = ("--hf", config(tmp_path), "--tokens", "50000000", "--json")
    made = document_in(run(*words).stdout)
    assert made["tokens"] == 50_000_000
    assert made["candidates"][0]["hardware"] == made["recommended"]
    for row in made["candidates"]:
        took = row["duration_s"]
        assert took["p10"] < took["p50"] < took["p90"]
        dollars = took["p50"] / 3600 * float(row["rate_per_hour_usd"])
        assert float(row["cost_p50_usd"]) == pytest.approx(dollars, abs=0.001)
        assert row["need_gb"]["least"] <= row["memory_gb"]
    sure = [row["fits_for_certain"] for row in made["candidates"]]
    assert sure == sorted(sure, reverse=True), "what may not fit comes after what does"


def test_limits_and_memory_refuse_with_what_would_do(tmp_path: Path) -> None:
    path = config(tmp_path)
    with pytest.raises(DoesNotFit, match="the closest is 1xL4") as none:
        run("--hf", path, "--method", "full", "--hardware", "1xL4")
    assert "--method lora" in none.value.next_step
    with pytest.raises(BudgetRefused, match="the cheapest is") as dear:
        run("--hf", path, "--method", "full", "--budget", "0.5")
    cap = dear.value.next_step.split()[1].rstrip(",")
    assert "Recommended" in run("--hf", path, "--method", "full", "--budget", cap).stdout
    for words, said in (
        (("--method", "sft"), "unknown"),
        (("--hf-set", "alpha=3"), "does not know 'alpha'"),
        (("--hf-set", "rank=many"), "a number from"),
        (("--hf-set", "bits=8"), "--hf-set bits=4 needs --method lora"),
        (("--method", "full", "--hf-set", "bits=4"), "--hf-set bits=4 needs --method lora"),
        (("--steps", "5"), "--hf does not work with --set, --steps, --hours or --fill"),
        (("--", "python", "a.py"), "--hf plans a model, and -- COMMAND a command"),
    ):
        with pytest.raises(UsageError, match=said):
            run("--hf", path, *words)


MEASURED = MeasuredSteps(steps=30, step_s=0.5, fast_s=0.45, slow_s=0.6, cores=4.0, memory_bytes=1)


def keep_probe(home: Path, **changed: Any) -> None:
    probed = CommandProbe("r-1", "A100-80GB-SXM", 1, False, MEASURED, 0.9, 30.0)
    kept = measurements.KeptProbe(PYTHON, 1.0, replace(probed, **changed))
    home.mkdir(exist_ok=True)
    rows = finite([kept])
    write_atomic(home / measurements.KEPT_NAME, json.dumps(rows))


def test_a_command_is_planned_from_its_probe(own_home: Path) -> None:
    keep_probe(own_home)
    text = run("--steps", "36000", "--hardware", "1xA100", "--", *PYTHON).stdout
    assert "planned from its probe r-1: 0.5 s a step on 1 × A100-80GB-SXM, 30.0 GB in use" in text
    row = next(line for line in text.splitlines() if line.startswith("▸ 1xA100"))
    assert "5.2 (" in row, "36,000 × 0.5 s, elsewhere and with the start"
    assert "Run it: trmcloud run 1xA100 --steps 36000 -- python train.py" in text
    any_of = run("--", *PYTHON).stdout
    assert "1,000 steps assumed; --steps sets the number" in any_of
    assert "24 GB" not in any_of, "what was in use fits none of these"


CORES = {"sku": "2 CPU cores", "gpus": 2, "here": True, "busy": None, "used_gb": 0.2}


def test_a_probe_without_a_gpu_gives_no_estimate_for_one(
    own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processors are not two GPUs, and a step that was not measured does not take a second."""
    keep_probe(own_home, **CORES)
    text = run("--steps", "36000", "--rate", "1", "--", *PYTHON).stdout
    assert "xA100" not in text
    assert "not measured on a GPU, so no estimate for one: trmcloud run any" in text
    assert "Run it: trmcloud run local --rate 1 --steps 36000 -- python train.py" in text
    for hardware in ("2xA100", "1xH100"):
        with pytest.raises(NotFoundError, match="not measured on a GPU, so no estimate") as none:
            run("--steps", "36000", "--hardware", hardware, "--json", "--", *PYTHON)
        assert none.value.next_step.startswith(f"trmcloud run {hardware} --probe 30")
        with pytest.raises(UsageError, match="how long its steps take there was not measured"):
            Home().plan_command(PYTHON, hardware=hardware, steps=36000)
    bought = run("--budget", "5", "--json", "--", *PYTHON).stdout
    told = json.loads(bought)
    assert {each["gpus"] for each in told["candidates"]} == {1}
    assert any("so no estimate" in each["message"] for each in told["notes"])


def test_a_probe_of_other_gpus_gives_no_estimate(own_home: Path) -> None:
    keep_probe(own_home)
    for hardware in ("2xA100", "local"):
        with pytest.raises(NotFoundError, match="not measured there, so no estimate"):
            run("--steps", "36000", "--hardware", hardware, "--", *PYTHON)


def test_the_line_to_type_repeats_what_was_typed(own_home: Path) -> None:
    keep_probe(own_home)
    typed = ("--steps", "36000", "--budget", "90", "--wait-for", "6h", "--region", "EU-RO-1")
    text = run(*typed, "--hardware", "1xA100", "--unsent", "--", "python", "train.py").stdout
    line = next(each for each in text.splitlines() if each.startswith("Run it: "))
    assert shlex.split(line)[-3:] == ["--", "python", "train.py"]
    for word in (*typed, "--unsent"):
        assert word in shlex.split(line)


def test_without_a_probe_a_command_that_was_tried_is_said_to_start(own_home: Path) -> None:
    words = ("--budget", "5", "--", "python", "other file.py")
    text = run(*words).stdout
    assert "not measured, so its speed and memory are not known; trmcloud try (free)" in text
    assert text.splitlines()[-1].endswith("-- python 'other file.py'")
    (own_home / "trials").mkdir(parents=True)
    (own_home / "trials" / "a.json").write_text(json.dumps({"words": ["python", "other file.py"]}))
    (own_home / "trials" / "b.json").write_text("{")
    assert "trmcloud try has run it, so it starts" in run(*words).stdout
