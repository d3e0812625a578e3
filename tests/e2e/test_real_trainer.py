"""The whole product with the real trainer: tiny models, real torchrun, real text."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import pytest

from tests.e2e.user import TINY, User
from trmcloud.core.errors import Outcome
from trmcloud.core.money import ZERO, Usd
from trmcloud.operations.reasons import sentence


def test_a_budget_that_binds(trainee: User) -> None:
    trainee.pace(0.25)
    budget = Usd("0.06")
    out = trainee.run("launch", "local", *TINY, "--budget", budget.plain(), "-y", code=20)
    run = trainee.only_run()
    assert run.outcome is Outcome.LANDED, out
    assert ZERO < run.settled <= budget
    assert run.reserved == ZERO
    assert len(trainee.metrics("eval")) >= 2

    fetched = trainee.json("fetch-best", "--into", "best", "--json")
    best = trainee.best()
    assert (fetched["checkpoint"], fetched["sha256"]) == (best.label, best.sha256)

    scored = trainee.json("eval", "best", "--json")["values"]
    assert scored["sha256"] == best.sha256
    assert scored["val_bpb"] == pytest.approx(best.val_bpb, rel=1e-3)
    assert len(scored["val_step_losses"]) == 4
    assert 0 < scored["byte_bigram_bits"] < scored["byte_unigram_bits"]
    other = trainee.folder / "other.py"
    other.write_text(inspect.getsource(inspect)[:20_000])
    assert trainee.json("eval", "best", "--data", "other.py", "--json")["values"]["tokens"] > 1000

    sampled = trainee.json("sample", "best", "--prompt", "def f", "--max-tokens", "8", "--json")
    assert sampled["text"].startswith("def f")


@pytest.mark.more
def test_a_run_that_landed_is_topped_up_from_before_its_cooldown(trainee: User) -> None:
    trainee.pace(0.25)
    one = ("--processes", "1", "--set", "warmup_steps=4", "--set", "keep_best=1")
    trainee.run("launch", "local", *TINY, *one, "--budget", "0.05", "-y", code=20)
    run = trainee.only_run()
    assert run.outcome is Outcome.LANDED
    landed, first = run.phases["fast"].step, trainee.metrics("decision")[0]["cooldown_from"]
    assert isinstance(landed, int)
    assert isinstance(first, int)
    kept = {m.step: m.cooldown_from for m in trainee.checkpoints().values()}
    assert (kept[first], kept[landed]) == (None, first)
    before = f"fast/step-{first:08d}"
    places = trainee.json("prune", run.run_id, "--json")["places"]
    assert before in places[0]["keep"]

    told = trainee.run("resume", "-y", "--budget", "0.11", code=20)
    assert f"the cooldown began after step {first:,}: a longer run continues from" in told
    assert before in told
    start = trainee.metrics("start")[-1]
    assert (start["from_step"], start["weights_of"]) == (landed, first)
    lines = trainee.metrics("train")
    rates = {line["step"]: line["lr"] for line in lines}
    steps = [int(str(line["step"])) for line in (*lines, *trainee.metrics("skip"))]
    assert sorted(steps) == list(range(1, len(steps) + 1)), "each step once, or left out"
    assert {rates.get(step, 1.0) for step in (landed + 1, landed + 2)} == {1.0}, "at once"
    assert rates.get(landed) != 1.0
    again = trainee.metrics("decision")[-1]["cooldown_from"]
    assert isinstance(again, int)
    assert again > landed
    run = trainee.only_run()
    assert run.outcome is Outcome.LANDED
    assert ZERO < run.settled <= Usd("0.11")
    last = trainee.checkpoints()[f"fast/step-{run.phases['fast'].step:08d}"]
    assert last.cooldown_from is not None
    assert last.cooldown_from > landed


@pytest.mark.more
def test_a_dense_recipe_from_its_small_table_to_its_report(trainee: User) -> None:
    """One phase, one loss, and neither: what is read of it is found under its own names."""
    shrunk = ("vocab_size=512", "depth=1", "sequence=64", "eval_tokens=2048", "eval_every=20")
    settings = [word for each in shrunk for word in ("--set", each)]
    trainee.run(
        "launch", "local", "--recipe", "gpt350m-small", "--data", "text.py", "--rate", "3.60",
        *settings, "--steps", "60", "--budget", "0.30", "--processes", "1", "-y",
    )  # fmt: skip
    run = trainee.only_run()
    assert run.outcome is Outcome.FINISHED, sentence(run.reason)
    assert list(run.phases) == ["train"]
    told = trainee.run("status", run.run_id)
    assert "✔ falling bits per byte" in told
    assert "order" not in told
    fetched = trainee.json("fetch-best", "--into", "best", "--json")
    assert fetched["checkpoint"].startswith("train/step-")
    scored = trainee.json("eval", "best", "--json")["values"]
    assert len(scored["val_step_losses"]) == 1
    assert scored["val_bpb"] < scored["byte_unigram_bits"]
    [report] = trainee.json("report", "--json")["runs"]
    assert report["best"]["val_bpb"] == pytest.approx(scored["val_bpb"], rel=1e-3)

    made = trainee.json("fetch-best", run.run_id, "--to", "hf", "--into", "hf", "--json")
    assert (made["schema"], made["architecture"]) == ("exported/1", "LlamaForCausalLM")
    folder = Path(made["folder"])
    assert not list(folder.parent.glob(".hf*"))
    card = (folder / "README.md").read_text()
    assert all(each in card for each in (fetched["sha256"], run.plan.id, "text.py"))
    assert f"| bill | {run.settled}, final |" in card or "| bill so far |" in card


_SEGMENTS = ("sequence=88", "question_tokens=24", "plan_tokens=24", "execution_tokens=40")


@pytest.mark.more
@pytest.mark.parametrize(
    ("recipe", "lengths", "left_out", "parts"),
    [
        (
            "hdp-small", _SEGMENTS,
            "1 texts to train on and 0 to validate on have a question, plan or",
            ["plan", "execution"],
        ),
        (
            "bd3lm-small", ("sequence=64", "block=8"),
            "1 texts to train on and 0 to validate on are longer than a row of 64 tokens", [],
        ),
    ],
)  # fmt: skip
def test_block_diffusion_from_questions_to_exact_match(
    trainee: User, recipe: str, lengths: tuple[str, ...], left_out: str, parts: list[str]
) -> None:
    lines = [
        {
            "question": f"A dog eats {a} and {b}.",
            "answer": f"It eats {a}+{b}=<<{a}+{b}={a + b}>>{a + b} of them.\n#### {a + b}",
        }
        for a in range(2, 32)
        for b in range(2, 12)
    ]
    lines[7]["answer"] = "It eats. " * 40 + lines[7]["answer"]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (trainee.folder / "sums.jsonl").write_text(text)
    shrunk = (
        *("vocab_size=400", "depth=1", "width=64", "eval_tokens=4096", "eval_every=20"),
        *("optimizer=adamw", "matrix_lr=1e-2", "embedding_lr=1e-2", "head_lr=1e-2"),
        *("warmup_steps=5", "validation_fraction=0.1"),
    )
    settings = [word for each in (*shrunk, *lengths) for word in ("--set", each)]
    trainee.run(
        "launch", "local", "--recipe", recipe, "--data", "sums.jsonl", "--rate", "3.60",
        *settings, "--steps", "40", "--budget", "0.60", "--processes", "1", "-y",
    )  # fmt: skip
    run = trainee.only_run()
    assert run.outcome is Outcome.FINISHED, sentence(run.reason)
    assert Usd("0") < run.settled <= Usd("0.60")
    assert "✔ falling bits per byte" in trainee.run("status", run.run_id)
    [log] = trainee.home.glob("runs/*/train/metrics.jsonl")
    assert left_out in log.read_text()
    fetched = trainee.json("fetch-best", "--for-inference", "--into", "best", "--json")
    assert fetched["checkpoint"].startswith("train/step-")
    scored = trainee.json("eval", "best", "--json")["values"]
    assert scored["sha256"] == fetched["sha256"]
    [first, *_] = [line for line in map(json.loads, log.open()) if line["kind"] == "eval"]
    assert scored["val_bpb"] < 0.8 * first["val_bpb"]
    task = ("eval", "best", "--task", "gsm8k", "--data", "sums.jsonl", "--limit", "8")
    solved = trainee.json(*task, "--json")["values"]
    assert (solved["items"], solved["not_asked"]) == (8, 0)
    assert solved["parts"] == parts
    arguments = ("sample", "best", "--prompt", "A dog eats 3 and 4.", "--temperature", "0")
    sampled = trainee.run(*arguments)
    assert sampled.startswith("A dog eats 3 and 4.")
    assert sampled.count("\n\n") >= len(parts), "a plan, and an execution"
    [report] = trainee.json("report", "--json")["runs"]
    assert report["best"]["val_bpb"] == fetched["val_bpb"]
