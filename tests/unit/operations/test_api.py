"""What ``trmcloud.api`` refuses is what commands refuse; nothing is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.test_api import OWN, SMALL, WORDS, home, project
from tests.typist import InProcess, typist
from trmcloud.api import Home
from trmcloud.core.errors import BudgetRefused, NotFoundError, UsageError
from trmcloud.core.money import Usd

__all__ = ["home", "project", "typist"]


@pytest.fixture
def user(typist: InProcess) -> InProcess:
    return typist


def test_what_run_refuses_is_refused_to_a_program(home: Home, project: Path) -> None:
    with pytest.raises(UsageError, match="the words of a command must be a list") as caught:
        home.run_command("python3 train.py", here=project, **OWN)
    assert caught.value.next_step == "['python3', 'train.py']"
    for wrong in ({"recipe": "trm"}, {"colour": "red"}):
        with pytest.raises(UsageError, match=f"there is no option '{next(iter(wrong))}'"):
            home.run_command(WORDS, here=project, **{**OWN, **wrong})
    with pytest.raises(UsageError, match="--metric is not a valid pattern"):
        home.plan_command(WORDS, here=project, **{**OWN, "metric": "(["})
    with pytest.raises(UsageError, match="choose a machine"):
        home.plan_command(WORDS, here=project, budget="1")
    with pytest.raises(
        UsageError, match="the run needs a limit, because the machine costs money every hour"
    ):
        home.run_command(WORDS, here=project, hardware="local", rate="3.60")
    with pytest.raises(BudgetRefused, match="no budget is set: this would spend without a limit"):
        home.run_command(WORDS, here=project, hardware="local", rate="3.60", hours=0.01)
    with pytest.raises(UsageError, match="command not found on this machine"):
        home.run_command(("./absent",), here=project, **OWN)
    with pytest.raises(UsageError, match="--data takes a folder"):
        home.run_command(WORDS, here=project, data="absent", **OWN)
    assert home.runs() == ()


def test_paths_of_a_command_are_relative_to_its_folder(home: Home, project: Path) -> None:
    for name in ("sub", "data"):
        (project / name).mkdir()
        (project / name / "file.txt").write_text(name)
    (project / "sub" / "train.py").touch()
    plan = home.plan_command(WORDS, here=project / "sub", root="..", data="../data", **OWN)
    assert plan.spec.command is not None
    assert (plan.spec.command.folder, plan.spec.command.data) == ("sub", "data")
    assert Path(plan.spec.data).samefile(project / "data")


def test_what_is_refused_is_what_commands_refuse(home: Home, typist: InProcess) -> None:
    with pytest.raises(NotFoundError, match="there are no runs yet"):
        home.run()
    with pytest.raises(NotFoundError, match="no run 'r-x'"):
        home.wait("r-x")
    with pytest.raises(NotFoundError):
        next(home.events("r-x"))
    with pytest.raises(UsageError, match="there is no option 'colour'"):
        home.plan(colour="red")
    with pytest.raises(UsageError, match="--budget"):
        home.plan(budget="-3")
    with pytest.raises(UsageError, match="the month cap is not set"):
        home.raise_cap("month", "9")
    typist.run("budget", "set", "month", "0.000001")
    with pytest.raises(BudgetRefused, match="month"):
        home.launch("local", steps=40, budget="1", **SMALL)
    assert home.runs() == ()
    line = home.raise_cap("month", "5")
    assert line.cap == Usd("5")
    assert [each.level for each in home.budgets()] == ["account", "month", "project"]
    with pytest.raises(UsageError, match="would not raise it"):
        home.raise_cap("month", "4")


def test_another_home_by_its_path(home: Home, tmp_path: Path) -> None:
    other = Home(tmp_path / "other")
    assert other.runs() == ()
    assert other.context.home == tmp_path / "other"
