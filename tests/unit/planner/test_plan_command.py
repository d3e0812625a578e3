from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from trmcloud.cli import plan as plan_command
from trmcloud.cli import plan_view
from trmcloud.core.errors import NotFoundError, UsageError

app = typer.Typer()
app.command()(plan_command.command)


@pytest.fixture(autouse=True)
def own_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRMCLOUD_HOME", str(tmp_path))


def run(*arguments: str) -> Any:
    result = CliRunner().invoke(app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_the_guides_six_are_shown_with_a_recommendation() -> None:
    text = run("--budget", "1000").stdout
    for hardware in ("8xB200", "8xH200", "8xH100", "8xA100", "4xH100", "4xA100"):
        assert hardware in text
    assert "Launch it: trmcloud launch p-" in text


def test_json_is_json() -> None:
    data = json.loads(run("--budget", "1000", "--json").stdout)
    assert data["budget_usd"] == 1000
    assert data["recommended"]


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
    spec = plan_command.make_spec(budget="1000", settings=[])
    plan = plan_command.prepare(spec)
    wide = plan_view.render(plan, columns=130)
    assert any("hours p50 (p10–p90)" in line for line in wide)
    assert any(line.startswith(" ▸ ") for line in wide)
    assert max(len(line) for line in wide if "│" not in line) < 200
    narrow = plan_view.render(plan, columns=60)
    assert not any("hours p50 (p10–p90)" in line for line in narrow)
