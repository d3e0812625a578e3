"""``plan`` for named models, images, scripts without a probe, budgets and spot machines."""

from __future__ import annotations

import ast
import csv
import json
import py_compile
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from scripts import questions
from tests.documents import document_in
from trmcloud.cli.commands import plan as plan_command
from trmcloud.core.errors import NotFoundError, UsageError
from trmcloud.core.planner.candidates import interruptions_of
from trmcloud.core.planner.finetuning import Finetuning, need_of, predicted, seconds_per_token
from trmcloud.core.spec.hf_models import read_config
from trmcloud.operations.plans.hf_names import SHIPPED, find_model, shipped
from trmcloud.operations.plans.spot_beside import spot_beside
from trmcloud.options import LaunchRequest
from trmcloud.wiring_plans import build_planner

ROOT = Path(__file__).resolve().parents[3]
app = typer.Typer()
app.command()(plan_command.plan)


@pytest.fixture(autouse=True)
def own_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("TRMCLOUD_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    return tmp_path


def run(*arguments: str) -> Any:
    result = CliRunner().invoke(app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


# -- models by name --------------------------------------------------------------------------------


def rows() -> list[dict[str, str]]:
    with SHIPPED.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("name", [row["name"] for row in rows()])
def test_a_shipped_models_sizes_give_its_published_parameters(name: str) -> None:
    row = next(row for row in rows() if row["name"] == name)
    _, model = find_model(name)
    assert model.parameters == pytest.approx(int(row["parameters"]), rel=0.02)
    assert "; " in row["source"], "of the shape, and of the count"


def test_the_most_used_families_ship() -> None:
    names = list(shipped())
    assert len(names) >= 40
    for part in ("Llama-3", "Qwen2.5", "Qwen3", "Mistral", "gemma-3", "phi-4", "gpt2", "bert",
                 "vit", "SmolLM", "OLMo", "DeepSeek", "gpt-oss"):  # fmt: skip
        assert any(part in name for name in names), part


@pytest.mark.parametrize(
    ("typed", "like"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B"),
        ("meta-llama/Meta-Llama-3.1-8B", "meta-llama/Llama-3.1-8B"),
        ("qwen2.5-7b", "Qwen/Qwen2.5-7B"),
        ("Qwen/Qwen3-4B-Instruct-2507", "Qwen/Qwen3-4B"),
        ("google/gemma-3-4b-pt", "google/gemma-3-4b-it"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistralai/Mistral-7B-v0.3"),
        ("gpt2", "openai-community/gpt2"),
    ],
)
def test_a_variant_has_the_sizes_of_its_base(typed: str, like: str) -> None:
    name, model = find_model(typed)
    assert model == find_model(like)[1]
    assert name == (typed if "/" in typed else like)


def test_an_unknown_name_says_which_are_near_and_that_a_file_works() -> None:
    with pytest.raises(UsageError, match="not among the 54 models whose sizes ship") as none:
        find_model("meta-llama/Llama-3.1-9B")
    assert "nearest: meta-llama/Llama-3.1-8B, " in none.value.next_step
    assert "--hf path/to/config.json" in none.value.next_step
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        find_model("./elsewhere/config.json")


@pytest.mark.parametrize("name", ["openai/whisper-small", "google/flan-t5-base", "clip-vit-base"])
def test_a_model_of_two_stacks_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(UsageError, match="has two stacks of blocks") as refused:
        find_model(name)
    assert "-- python train.py" in refused.value.next_step


def test_a_head_is_tied_by_default_where_transformers_ties_it() -> None:
    sizes = {
        "hidden_size": 2304, "num_hidden_layers": 26, "num_attention_heads": 8, "head_dim": 256,
        "num_key_value_heads": 4, "intermediate_size": 9216, "vocab_size": 256000,
    }  # fmt: skip
    tied = read_config({"model_type": "gemma2", **sizes}, "x")
    untied = read_config({"model_type": "llama", **sizes}, "x")
    assert untied.parameters - tied.parameters == 256000 * 2304


# -- methods ---------------------------------------------------------------------------------------


def test_dpo_takes_a_forward_pass_more_than_lora_and_no_more_memory() -> None:
    _, model = find_model("Qwen/Qwen2.5-7B")
    lora, dpo = Finetuning("lora"), Finetuning("dpo")
    ratio = seconds_per_token(model, dpo, "H100-SXM", 1) / seconds_per_token(
        model, lora, "H100-SXM", 1
    )
    assert 1.2 < ratio < 1.5, "forward, forward again and half of backward, and one more forward"
    assert need_of(model, dpo, 1, 80.0) == need_of(model, lora, 1, 80.0)
    known, guessed = (predicted(model, how, "H100-SXM", 1) for how in (lora, dpo))
    assert guessed[2] / guessed[1] > known[2] / known[1], "no published run: less is known"


def test_qlora_is_lora_on_four_bits() -> None:
    words = ("--hf", "Qwen/Qwen2.5-7B", "--hardware", "1xA100")
    made = [
        document_in(run(*words, *more, "--json").stdout)
        for more in (("--method", "qlora"), ("--hf-set", "bits=4"))
    ]
    assert made[0]["candidates"] == made[1]["candidates"]
    assert made[0]["finetuning"]["bits"] == 4
    assert made[0]["name"] == "Qwen/Qwen2.5-7B"


def test_grpo_says_in_a_line_how_little_is_known() -> None:
    lines = run("--hf", "Qwen/Qwen2.5-0.5B", "--method", "grpo").stdout.splitlines()
    assert "  time within × ÷ 2.5, from one source (images and text)" in lines


def test_short_models_are_planned_at_the_length_that_they_were_made_for() -> None:
    made = document_in(run("--hf", "google-bert/bert-base-uncased", "--json").stdout)
    assert made["finetuning"]["sequence"] == 512


# -- images ----------------------------------------------------------------------------------------

VIT = ("--hf", "google/vit-base-patch16-224", "--hardware", "1xA100")


def test_images_are_planned_by_parameters_size_and_batch() -> None:
    text = run(*VIT, "--hf-set", "images=1000000", "--hf-set", "batch=128").stdout
    assert "0.086B parameters" in text
    assert "1,000,000 images of 224 × 224 (197 tokens each)" in text
    assert "  128 images per GPU and pass; reading " in text
    hours = []
    for side in (224, 384):
        made = document_in(run(*VIT, "--hf-set", f"image={side}", "--json").stdout)
        assert made["finetuning"]["method"] == "vision"
        assert made["tokens"] == 1_281_167 * ((side // 16) ** 2 + 1)
        hours.append(made["candidates"][0]["duration_s"]["p50"])
    assert 2.0 < hours[1] / hours[0] < 4.5, "577 tokens in place of 197"
    for words, said in (
        (("--method", "lora"), "--method lora is not planned for images"),
        (("--hf-set", "rank=8"), "does not know 'rank'"),
    ):
        with pytest.raises(UsageError, match=said):
            run(*VIT, *words)


def test_a_larger_batch_of_images_needs_more_memory() -> None:
    _, model = find_model("google/vit-base-patch16-224")
    how = Finetuning("vision", sequence=197)
    small, large = (need_of(model, how._replace(batch=n), 1, 80.0).expected for n in (64, 256))
    assert large > 2.5 * small


# -- the script ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "hardware", "parts"),
    [
        ("lora", "4xL40S", ("SFTTrainer", "LoraConfig", '{"dtype": "bfloat16"}')),
        ("qlora", "1xA100", ("SFTTrainer", "LoraConfig", "load_in_4bit=True")),
        ("full", "8xH100", ("SFTTrainer", "fsdp=True", "learning_rate=2e-5")),
        ("dpo", "1xA100", ("DPOTrainer", "LoraConfig", "beta=0.1", '"chosen"')),
    ],
)
def test_a_plan_writes_a_script_that_does_what_was_planned(
    own_home: Path, method: str, hardware: str, parts: tuple[str, ...]
) -> None:
    words = (
        "--hf", "meta-llama/Llama-3.1-8B", "--method", method, "--hardware", hardware,
        "--tokens", "5000000",
    )  # fmt: skip
    plan = document_in(run(*words, "--json").stdout)
    lines = run(*words, "--write", "sft.py").stdout.splitlines()
    text = (own_home / "sft.py").read_text()
    py_compile.compile(str(own_home / "sft.py"), doraise=True)
    for part in ('model="meta-llama/Llama-3.1-8B"', "max_length=2048", *parts):
        assert part in text
    chosen, gpus = plan["candidates"][0], int(hardware.partition("x")[0])
    steps = -(-5_000_000 // (chosen["batch"] * 2048 * gpus))
    assert f"max_steps={steps}," in text
    rows = chosen["batch"] // (2 if method == "dpo" else 1)
    assert f"per_device_train_batch_size={rows}," in text
    assert "$" not in text
    launch = shlex.split(lines[-1])
    assert launch[:3] == ["trmcloud", "run", hardware]
    assert float(launch[launch.index("--budget") + 1]) >= float(chosen["cost_p90_usd"])
    needs = (own_home / launch[launch.index("--pip") + 1]).read_text().split()
    assert any(each.startswith("trl") for each in needs)
    assert any(each.startswith("bitsandbytes") for each in needs) == (method == "qlora")
    starts = launch[launch.index("--") + 1 :]
    assert starts[-1] == "sft.py"
    assert starts[:-1] == (["torchrun", "--nproc-per-node", str(gpus)] if gpus > 1 else ["python"])
    assert "HF_TOKEN" in launch, "its weights are behind a license"
    assert launch[launch.index("--resume") + 1] == shlex.join(starts)


def test_a_name_with_quotes_stays_a_text_in_the_script(own_home: Path) -> None:
    name = "x\"+1/0+'\n/gpt2"
    run("--hf", name, "--hardware", "1xL4", "--write", "odd.py")
    tree = ast.parse((own_home / "odd.py").read_text())
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    assert name in texts
    assert not any(isinstance(node, ast.Div) for node in ast.walk(tree))


def test_a_file_that_is_there_is_not_replaced_without_asking(own_home: Path) -> None:
    (own_home / "mine.py").write_text("mine")
    with pytest.raises(UsageError, match=r"mine\.py exists, and this is not a terminal"):
        run("--hf", "gpt2", "--write", "mine.py")
    assert (own_home / "mine.py").read_text() == "mine"
    assert not (own_home / "mine-requirements.txt").exists()


def test_what_no_script_is_written_for_is_refused() -> None:
    for words in (
        ("gpt2", "--method", "grpo", "--write", "a.py"),
        ("gpt2", "--write", "a.txt"),
        ("bert-base-uncased", "--write", "a.py"),
    ):
        with pytest.raises(UsageError, match="--write does not write"):
            run("--hf", *words)
    with pytest.raises(UsageError, match="DPO's rows are pairs"):
        run("--hf", "gpt2", "--method", "dpo", "--hf-set", "batch=1")
    with pytest.raises(UsageError, match="--write are for --hf"):
        run("--write", "a.py")


# -- a budget without a recipe, a command without a probe, spot ------------------------------------


def test_a_budget_and_a_time_without_a_recipe_list_what_fits() -> None:
    result = run("--budget", "50", "--deadline", "5h")
    lines = result.stdout.splitlines()
    assert lines[0].startswith("within $50.00 and 5.0 h")
    for name in ("gpt350m", "full ", "lora ", "qlora "):
        assert any(line.startswith(f"  {name}") for line in lines), name
    assert "speedrun does not fit; closest:" in lines
    assert result.exit_code != 0, "as the usual recipe does not fit"
    small = run("--budget", "2", "--deadline", "1h").stdout
    assert "  qlora " not in small
    assert "  lora " in small


def test_a_command_without_a_probe_has_a_price_per_hour_and_a_probes_cost(own_home: Path) -> None:
    text = run("1xH100", "--budget", "50", "--", "python", "train.py").stdout
    lines = text.splitlines()
    made = json.loads(run("1xH100", "--budget", "50", "--json", "--", "python", "train.py").stdout)
    row = next(each for each in made["candidates"] if each["id"] == made["recommended"])
    rate = float(row["planned_rate_per_hour_usd"])
    assert f"${rate:.2f}/h" in text
    assert 0.9 * 50 / rate < row["duration_s"]["p50"] / 3600 <= 50 / rate
    assert "Run it: trmcloud run 1xH100 --budget 50 -- python train.py" in lines
    assert any(line.startswith("not measured, so its speed and memory") for line in lines)
    probe = shlex.split(lines[-1])
    assert probe[:5] == ["trmcloud", "run", "1xH100", "--probe", "30"]
    planner = build_planner()
    assert "A probe of 30 steps costs about $" in lines[-2]
    cap = probe[probe.index("--budget") + 1]
    spec = planner.spec(LaunchRequest(hardware="1xH100", budget=cap, recipe="shakespeare"))
    assert planner.plan(spec).recommended is not None, "it pays for a start"
    assert "0.0/80 GB" not in text, "its memory is not known"


def test_a_command_without_a_limit_is_priced_for_an_hour() -> None:
    text = run("1xH100", "--", "python", "train.py").stdout
    assert "  one hour assumed: --budget 50 or --hours 8 sets the length" in text
    assert "Run it: trmcloud run 1xH100 --hours 1 -- python train.py" in text
    with pytest.raises(NotFoundError, match="how long 100 steps take was not measured"):
        run("1xH100", "--steps", "100", "--", "python", "train.py")


def test_a_spot_machine_is_beside_with_what_preemptions_cost() -> None:
    planner = build_planner()
    wish = LaunchRequest(recipe="gpt350m", budget="500", hardware="8xH100")
    plan = planner.plan(planner.spec(wish))
    found = spot_beside(planner, plan)
    assert found is not None
    assert plan.recommended is not None
    row = found.candidate
    assert row.spot
    assert row.cost_p50 < plan.recommended.cost_p50
    rate = interruptions_of(row.provider).planned_per_hour
    assert found.preemptions == pytest.approx(rate * row.hours.p50)
    # Each costs a restart of some minutes and half of the work between two saves.
    each_h = float(found.lost) / float(row.planned_rate or row.rate) / found.preemptions
    assert 0.05 < each_h < 2.0
    assert float(found.lost) < 0.5 * float(row.cost_p50)
    text = run("--recipe", "gpt350m", "--budget", "500", "--hardware", "8xH100").stdout
    assert f"spot ({row.provider}): " in text
    assert "preemptions: --spot --bucket" in text


def test_a_fine_tuning_on_spot_expects_preemptions(own_home: Path) -> None:
    words = ("--hf", "gpt2", "--hardware", "8xH100", "--tokens", "3000000000")
    steady, spot = (
        document_in(run(*words, *more, "--json").stdout)["candidates"][0]
        for more in ((), ("--spot", "--provider", "aws"))
    )
    assert spot["provider"] == "aws", "where spot machines are rented"
    assert float(spot["cost_p50_usd"]) < float(steady["cost_p50_usd"])
    text = run(*words, "--spot", "--provider", "aws", "--write", "sft.py").stdout
    assert "GB · spot, 0.0" in text
    assert "preemptions expected" in text
    assert "--spot --bucket s3://BUCKET/PREFIX" in text


def test_a_plan_of_this_machine_has_no_spot_beside() -> None:
    planner = build_planner()
    plan = planner.plan(planner.spec(LaunchRequest(hardware="local", recipe="trm-tiny")))
    assert spot_beside(planner, plan) is None


# -- the page --------------------------------------------------------------------------------------


def test_the_page_of_ten_questions_is_what_is_printed() -> None:
    """Write it anew: .venv/bin/python scripts/questions.py"""
    assert len(questions.QUESTIONS) == 10
    assert questions.page() == questions.PAGE.read_text(encoding="utf-8")
