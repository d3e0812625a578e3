from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from tests.documents import document_in
from trmcloud.cli.commands import plan as plan_command
from trmcloud.cli.views import plan as plan_view
from trmcloud.core.errors import MissingExtra, NotFoundError, UsageError
from trmcloud.core.spec.plan import Plan
from trmcloud.io.installation import install_command
from trmcloud.operations.plans.plan_choices import MOST_CHOICES, choices
from trmcloud.options import LaunchRequest
from trmcloud.wiring_plans import build_planner

app = typer.Typer()
app.command()(plan_command.plan)


@pytest.fixture(autouse=True)
def own_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRMCLOUD_HOME", str(tmp_path))


def run(*arguments: str) -> Any:
    result = CliRunner().invoke(app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def a_plan() -> Plan:
    planner = build_planner()
    return planner.plan(planner.spec(LaunchRequest(budget="1000")))


@pytest.mark.parametrize(
    "words",
    [
        ("--budget", "1000"),
        ("--budget", "20", "--recipe", "d24"),
        ("--budget", "1000", "--recipe", "gpt350m"),
        ("--budget", "5", "--recipe", "shakespeare"),
        ("--budget", "25", "--recipe", "bd3lm"),
        ("--budget", "1000", "--recipe", "d64", "--fill"),
        ("--budget", "100", "--deadline", "1h", "--provider", "vast"),
        ("--hardware", "8xA100", "--max-price", "20", "--wait-for", "6h"),
    ],
)
def test_a_plan_fits_a_screen_of_80_by_24(words: tuple[str, ...]) -> None:
    lines = run(*words).stdout.splitlines()
    assert len(lines) <= 23, "and a prompt"
    shown = [n for n, line in enumerate(lines) if line.startswith("shown ")]
    assert max(map(len, lines[: shown[0]] if shown else lines[:1])) <= 80
    assert len(lines[-1]) <= 80
    assert lines[-1].startswith(("Launch it: trmcloud launch p-", "Next: "))


def test_the_choices_are_the_best_the_cheapest_the_fastest_and_trade_offs() -> None:
    plan = a_plan()
    labels = choices(plan)
    assert len(labels) <= MOST_CHOICES
    chosen = {label: plan.candidate(name) for name, label in labels.items()}
    assert plan.recommended is not None
    first = plan.recommended
    assert first.id in labels
    usable = [c for c in plan.candidates if c.fits_memory and c.within_budget]
    assert chosen["cheapest"].cost_p50 == min(c.cost_p50 for c in usable)
    assert chosen["fastest"].hours.p50 == min(c.hours.p50 for c in usable)
    for name, label in labels.items():
        other = plan.candidate(name)
        if label == "cheaper":
            assert other.cost_p50 < first.cost_p50
            assert other.hours.p50 > first.hours.p50


def test_what_does_not_finish_is_no_choice_beside_what_does() -> None:
    planner = build_planner()
    plan = planner.plan(planner.spec(LaunchRequest(budget="1000", recipe="gpt350m", hours=1.5)))
    assert plan.recommended is not None
    early = [
        c for c in plan.candidates if any("the hours are used" in text for _, text in c.reasons)
    ]
    assert any(c.cost_p50 < plan.recommended.cost_p50 for c in early), "else this shows nothing"
    labels = choices(plan)
    for candidate in early:
        short = re.search(r"(\d+)% trained", labels.get(candidate.id, "100% trained"))
        assert short is not None, "it is said"
        assert int(short[1]) >= 90, "and it is nearly all"
    assert len({c.id for c in early} - set(labels)) > 10


def test_the_guides_six_are_shown_with_a_recommendation() -> None:
    text = run("--budget", "1000", "-v").stdout
    for hardware in ("8xB200", "8xH200", "8xH100", "8xA100", "4xH100", "4xA100"):
        assert hardware in text
    assert "Launch it: trmcloud launch p-" in text


@pytest.mark.parametrize("budget", ["-1", "0", "nan", "inf", "ten", "", "1,0"])
def test_a_bad_budget_is_refused(budget: str) -> None:
    with pytest.raises(UsageError, match="--budget"):
        run("--budget", budget)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--phase", "slow"),
        ("--steps", "1", "--hours", "1"),
        ("--steps", "0"),
        ("--hours", "nan"),
        ("--hardware", "8xH1000"),
        ("--hardware", "8xH100", "--rate", "3"),
        ("--set", "dept=3"),
        ("--objective", "luck"),
    ],
)
def test_bad_options_are_refused(arguments: tuple[str, ...]) -> None:
    with pytest.raises(UsageError):
        run(*arguments)


def test_an_unknown_recipe_offers_the_nearest() -> None:
    with pytest.raises(NotFoundError) as caught:
        run("--recipe", "trn")
    assert "trm" in caught.value.next_step


def test_wide_terminals_get_a_table() -> None:
    plan = a_plan()
    wide = plan_view.render(plan, columns=130)
    assert any("hours p50 (p10–p90)" in line for line in wide)
    assert any(line.startswith(" ▸ ") for line in wide)
    assert max(len(line) for line in wide if "│" not in line) < 200
    narrow = plan_view.render(plan, columns=60)
    assert not any("hours p50 (p10–p90)" in line for line in narrow)


def test_explain_shows_the_arithmetic_beside_the_guides_claim() -> None:
    text = run("--budget", "1000", "--phase", "both", "--explain", "8xA100").stdout
    for part in ("FLOPs per step", "memory traffic", "MFU", "the guide's figures", "45–75 min"):
        assert part in text
    with pytest.raises(NotFoundError, match="8xL4"):
        run("--budget", "1000", "--explain", "8xL4")


def test_d64_is_filled_sharded_and_told_where_its_guide_went_wrong() -> None:
    text = run(
        "--recipe", "d64", "--hardware", "8xH100-PCIe", "--budget", "1000", "--fill",
        "--explain", "8xH100-PCIe",
    ).stdout  # fmt: skip
    for part in (
        "FSDP2", "per hour", "epochs", "412 GB of kept checkpoints", "103.1 GB in 8 shards",
        "147 % of the peak", "here:",
    ):  # fmt: skip
        assert part in text


def test_nothing_feasible_names_the_nearest_three_and_what_each_needs() -> None:
    text = run("--budget", "15", "--recipe", "speedrun").stdout
    assert "No plan fits these limits; closest:" in text
    assert text.count("this budget buys about ") == text.count("finishing needs $") == 3
    late = run("--deadline", "1h").stdout
    assert "set the deadline" in late


@pytest.mark.parametrize("suffix", ["svg", "html"])
def test_the_plot_is_written(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"plan.{suffix}"
    run("--budget", "1000", "--plot", str(path))
    text = path.read_text()
    assert "<polyline" in text
    assert "8xH100" in text
    if suffix == "svg":
        import xml.etree.ElementTree as tree

        assert tree.fromstring(text).tag.endswith("svg")


def test_an_unknown_plot_suffix_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"\.svg"):
        run("--budget", "1000", "--plot", str(tmp_path / "plan.gif"))


def test_providers_regions_and_counts_limit_the_offers() -> None:
    data = document_in(run("--provider", "aws", "--gpus", "8", "--json").stdout)
    assert {row["provider"] for row in data["candidates"]} == {"aws"}
    assert {row["gpus"] for row in data["candidates"]} == {8}
    with pytest.raises(UsageError, match="amazon"):
        run("--provider", "amazon")
    with pytest.raises(NotFoundError):
        run("--gpus", "64")


def test_spot_is_opt_in_and_priced_with_its_interruptions() -> None:
    asked = ("--provider", "aws", "--hardware", "8xH100", "--bucket", "s3://bucket/x", "--json")
    calm = document_in(run(*asked).stdout)
    risky = document_in(run(*asked, "--spot").stdout)
    assert not any(row["spot"] for row in calm["candidates"])
    spot = [row for row in risky["candidates"] if row["spot"]]
    assert spot
    assert spot[0]["duration_s"]["p50"] > calm["candidates"][0]["duration_s"]["p50"]
    told = [each["message"] for each in spot[0]["notes"]]
    assert any(
        "steps because of interruptions, and is expected to take" in reason for reason in told
    )
    assert any(
        "the rate per hour is not known, once in 10 h is assumed" in reason for reason in told
    )


def test_data_gives_epochs_and_a_warning(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("word " * 20_000)
    shown = run("--budget", "1000", "--hardware", "8xH100", "--data", str(text)).stdout
    assert "epochs over the data's 23,809 tokens — warning" in shown


def test_every_printed_price_carries_its_age() -> None:
    text = run("--budget", "1000").stdout
    priced = [line for line in text.splitlines() if "/h (" in line or "$0.00/h" in line]
    assert len(priced) == 4
    plan = a_plan()
    wide = "\n".join(plan_view.render(plan, columns=130))
    assert "age" in wide
    assert "days ago" in run("--budget", "1000", "--explain", "8xA100").stdout


def test_png_without_matplotlib_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra) as caught:
        run("--budget", "1000", "--plot", str(tmp_path / "plan.png"))
    assert caught.value.next_step == install_command("plot")


# -- what else, what lost, and nothing that fits ---------------------------------------------------


def test_a_plan_without_a_recipe_says_what_else_its_budget_buys() -> None:
    lines = run("--budget", "1000").stdout.splitlines()
    at = lines.index("$1,000.00 also buys (all: --recipes):")
    others = [line.split() for line in lines[at + 1 : at + 4]]
    assert lines[at + 4] == "", "the next command is the last line"
    assert [each[0] for each in others] == ["gpt350m", "shakespeare", "d24"]
    assert lines[at + 1].endswith("not known")
    assert "1.57 nats a character" in lines[at + 2]
    for words in (
        ("--recipe", "d24"), ("--hardware", "8xH100"), ("--set", "batch=8"), ("--phase", "fast"),
    ):  # fmt: skip
        assert "also buys" not in run("--budget", "1000", *words).stdout, words
    assert "also buys" not in run().stdout, "nothing says how much"
    assert document_in(run("--budget", "1000", "--json").stdout)["recipe"] == "speedrun"


def test_what_else_costs_what_its_own_plan_on_that_hardware_says() -> None:
    line = next(x for x in run("--budget", "1000").stdout.splitlines() if "  gpt350m" in x)
    _, hardware, hours, _, dollars = line.split()[:5]
    own = run("--budget", "1000", "--recipe", "gpt350m", "--hardware", hardware).stdout
    row = next(x for x in own.splitlines() if x.startswith("▸"))
    assert row.split()[2] == hours
    assert f"{dollars} (" in row


def test_every_recipe_that_a_budget_pays_for_is_listed_with_what_it_reached() -> None:
    text = run("--recipes", "--budget", "100").stdout
    rows = text.splitlines()[1:-1]
    assert [row.split()[0] for row in rows] == [
        "bd3lm", "d24", "d32", "gpt350m", "hdp", "shakespeare", "speedrun", "sudoku",
        "sudoku-4x4", "trm",
    ]  # fmt: skip
    assert "10 of 12 recipes; --recipe NAME" in text
    made = document_in(run("--recipes", "--budget", "100", "--json").stdout)["recipes"]
    assert {each["reached"] for each in made} >= {"not known", "1.57 nats a character (ours)"}
    assert all(float(each["cost_p90_usd"]) <= 100 for each in made)
    nothing = run("--recipes", "--budget", "0.001", "--provider", "runpod")
    assert nothing.exit_code == 4


@pytest.mark.parametrize(
    ("recipe", "told"),
    [
        ("speedrun", "climbmix is licensed CC BY-NC 4.0 (not for commercial use)"),
        ("d64", "generated: sums made by a formula, not language"),
        ("gpt350m", ""),
    ],
)
def test_a_plan_says_what_its_text_is(recipe: str, told: str) -> None:
    shown = run("--budget", "9000", "--recipe", recipe).stdout
    if told:
        assert told in shown
    else:
        assert "licensed" not in shown
        assert "formula" not in shown


def test_a_plan_by_a_published_time_names_the_source_in_text_and_json() -> None:
    words = ("--recipe", "sudoku", "--hardware", "1xL40S")
    told = "published: 18 h on 1xL40S (SamsungSAILMontreal/TinyRecursiveModels"
    text = run(*words).stdout
    assert "18.1 (" in text
    assert " · by a report · " in text
    assert told in text
    [first, *_] = document_in(run(*words, "--json").stdout)["candidates"]
    [note] = [each for each in first["notes"] if each["code"] == "published"]
    assert note["message"].startswith(told)


def test_nanochats_d32_is_about_a_thousand_dollars() -> None:
    made = document_in(run("--recipe", "nanochat-d32", "--hardware", "8xH100", "--json").stdout)
    [first, *_] = made["candidates"]
    assert 700 <= float(first["cost_p50_usd"]) < float(first["cost_p90_usd"]) <= 1200


def test_a_recipe_that_lost_to_its_control_is_planned_by_name_alone_and_that_is_said() -> None:
    told = "in a small run its control without recursion was 6 % better: docs/bench/control.md"
    for words in (("--recipe", "trm"), ("--phase", "both"), ("--phase", "fast")):
        assert told in run("--budget", "1000", *words).stdout
    assert told not in run("--budget", "1000").stdout
    for words in (("--hardware", "local"), ("--recipe", "speedrun")):
        assert told not in run("--budget", "1000", *words).stdout


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--budget", "20"), 4),
        (("--budget", "20", "--json"), 4),
        (("--deadline", "10m"), 4),
        (("--recipe", "d64", "--gpus", "1", "--set", "sequence=65536"), 5),
        (("--budget", "1000"), 0),
    ],
)
def test_nothing_that_fits_is_no_success(words: tuple[str, ...], code: int) -> None:
    result = run(*words)
    assert result.exit_code == code
    assert ("closest:" in result.stdout) == (code != 0 and "--json" not in words)


def test_a_refusal_has_a_command_that_has_a_plan() -> None:
    for words in (
        ("--recipe", "gpt350m", "--budget", "1"),
        ("--recipe", "d24", "--hardware", "local"),
    ):
        refused = run(*words).stdout
        line = next(
            line for line in refused.splitlines() if line.startswith("Next: trmcloud plan ")
        )
        typed = line.removeprefix("Next: trmcloud plan ").split()
        assert typed[:2] == list(words[:2]), "it keeps the recipe"
        assert "Recommended: " in run(*typed).stdout
