"""The same launch behind the command line, the Python door and an agent's: equal refusals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trmcloud.api import Home
from trmcloud.cli.main import main
from trmcloud.core.control.events import CapSet
from trmcloud.core.errors import BudgetRefused, GrantRefused, TrmcloudError, UsageError
from trmcloud.core.money import Usd
from trmcloud.operations.launch.launch import CHECKS, Caller, Earlier, Launch, Prepared, Wish
from trmcloud.operations.plans.planning import is_plan_id
from trmcloud.options import request_from
from trmcloud.wiring import build_context, trainer_package
from trmcloud.wiring_plans import build_planner

WORDS = ("python", "train.py")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a script, and an empty home of trmcloud."""
    monkeypatch.setenv("TRMCLOUD_HOME", str(tmp_path / "home"))
    for name in ("TRMCLOUD_PRINCIPAL", "TRMCLOUD_BUCKET"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "train.py").write_text("print('loss=1')\n")
    monkeypatch.chdir(folder)
    return folder


def _options(**changed: str) -> dict[str, Any]:
    return {"rate": "3.60", "hours": 1.0, **changed}


def _unlimited(home: Home) -> dict[str, Any]:
    return _options()


def _beyond_the_grant(home: Home) -> dict[str, Any]:
    home.give_grant("ci", Usd("0.50"))
    return _options(budget="2")


def _another_bucket(home: Home) -> dict[str, Any]:
    home.give_grant("ci", Usd(5))
    return _options(budget="2", bucket="s3://another/place")


def _no_script(home: Home) -> dict[str, Any]:
    Path("train.py").rename("other.py")
    return _options(budget="1")


def _no_budget_left(home: Home) -> dict[str, Any]:
    home.context.ledger.set_cap(CapSet("account", "", Usd("0.40"), "me"), home.context.wall())
    return _options(budget="1")


REFUSED: dict[str, tuple[Callable[[Home], dict[str, Any]], str, type[TrmcloudError], str]] = {
    "no limit, and nobody is asked": (_unlimited, "", BudgetRefused, "no budget is set"),
    "more than a grant allows": (_beyond_the_grant, "ci", GrantRefused, ""),
    "a bucket that a grant does not name": (_another_bucket, "ci", GrantRefused, "another/place"),
    "a script that is not sent": (_no_script, "", UsageError, "there is no such file"),
    "a cap that is used up": (_no_budget_left, "", BudgetRefused, "account"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_each_door_refuses_for_the_same_reason(
    name: str,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lay, principal, error, says = REFUSED[name]
    options = lay(Home())
    if principal:
        monkeypatch.setenv("TRMCLOUD_PRINCIPAL", principal)
    typed = [word for key, value in options.items() for word in (f"--{key}", str(value))]
    with pytest.raises(SystemExit) as ended:
        main(["run", "local", *typed, "-y", "--", *WORDS])
    told = capsys.readouterr().err
    with pytest.raises(error) as refused:
        Home().run_command(WORDS, hardware="local", **options)
    assert says in str(refused.value)
    assert str(refused.value) in told
    assert ended.value.code == error.exit_code
    assert Home().runs() == ()


def test_an_agent_is_asked_for_a_trial_and_a_person_is_not(here: Path) -> None:
    Home().give_grant("agent", Usd(5))
    options = _options(budget="1")
    with pytest.raises(GrantRefused, match="only after a trial"):
        Home(principal="agent").run_command(WORDS, hardware="local", **options)
    assert Home().runs() == ()


def test_every_check_is_asked_in_its_order(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = build_context()
    wish = Wish(request_from({"hardware": "local", **_options()}))
    launch = Launch(context, build_planner(), wish, Caller(), trainer_package)
    asked: list[int] = []

    def noted(number: int) -> Callable[[Launch, Prepared], None]:
        return lambda launch, prepared: asked.append(number)

    numbered = tuple(noted(number) for number in range(len(CHECKS)))
    monkeypatch.setattr("trmcloud.operations.launch.launch.CHECKS", numbered)
    launch.check(None)  # type: ignore[arg-type]
    assert asked == list(range(len(CHECKS)))


def test_a_look_saves_a_plan_and_neither_reserves_nor_asks(here: Path) -> None:
    plan = Home().plan_command(WORDS, hardware="local", **_options(budget="1"))
    assert is_plan_id(plan.id)
    assert plan.reservation == Usd(1)
    assert Home().runs() == ()


def test_without_a_key_nothing_was_launched_earlier(here: Path) -> None:
    wish = Wish(request_from({"hardware": "local", **_options(budget="1")}))
    launch = Launch(build_context(), build_planner(), wish, Caller(), trainer_package)
    found: Earlier | None = launch.earlier()
    assert found is None
