"""What a principal cannot ask for: see also tests/e2e/test_grants.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trmcloud.api import Home
from trmcloud.core.errors import GrantRefused, NotSupported
from trmcloud.operations.commands.commands import CommandRequest
from trmcloud.operations.money.grants import NOT_FOR_PRINCIPALS
from trmcloud.options import LaunchRequest, rows_of

GIVEN = {"env": ("HF_TOKEN",), "accept_exposure": "5", "allow_key": True}


def test_each_option_that_a_grant_does_not_cover_is_one() -> None:
    known = {*rows_of(LaunchRequest), *rows_of(CommandRequest)}
    assert set(NOT_FOR_PRINCIPALS) <= known
    assert set(NOT_FOR_PRINCIPALS) == set(GIVEN)


@pytest.mark.parametrize("name", GIVEN)
def test_it_is_refused_by_every_call_that_would_spend(name: str, tmp_path: Path) -> None:
    Home(tmp_path).give_grant("agent", "2")
    agent = Home(tmp_path, principal="agent")
    wish: dict[str, Any] = {"hardware": "local", "budget": "1", "rate": "1", name: GIVEN[name]}
    command, here = ("python3", "train.py"), tmp_path
    with pytest.raises(GrantRefused, match=name):
        agent.run_command(command, here=here, **wish)
    with pytest.raises(GrantRefused, match=name):
        agent.sweep(("lr=1,2",), (*command, "{lr}"), here=here, **wish)
    if name != "env":
        with pytest.raises(GrantRefused, match=name):
            agent.launch(**wish, recipe="trm-tiny")


def test_a_client_who_may_be_another_user_starts_and_reads_nothing_here(tmp_path: Path) -> None:
    """As over HTTP, where the client's user cannot be seen."""
    Home(tmp_path).give_grant("agent", "2")
    (tmp_path / "train.py").write_text("print('step=1')")
    agent = Home(tmp_path, principal="agent", uses_machine=False)
    command, here = ("python3", "train.py"), tmp_path
    local: dict[str, Any] = {"budget": "1", "rate": "3.60"}
    with pytest.raises(NotSupported, match="try is refused: which user") as refused:
        agent.try_command(command, here=here)
    assert "trmcloud mcp --grant" in refused.value.next_step
    for call in (agent.plan_command, agent.run_command):
        with pytest.raises(NotSupported, match="reading files of this machine is refused"):
            call(command, here=here, hardware="1xH100", budget="1")
    for sweep in (agent.plan_sweep, agent.sweep):
        with pytest.raises(NotSupported, match="reading files of this machine is refused"):
            sweep(("lr=1|2",), (*command, "{lr}"), here=here, hardware="1xH100", budget="1")
    paths = {"data": tmp_path, "initial_from": tmp_path, "recipe": "/x.toml", "goal": "./g.toml"}
    for name, path in paths.items():
        with pytest.raises(NotSupported, match=f"{name}: a file or folder is refused"):
            agent.plan(hardware="local", **{"recipe": "trm-tiny", **local, name: str(path)})
    with pytest.raises(NotSupported, match="local is refused"):
        agent.launch("local", recipe="trm-tiny", phase="fast", **local)
    with pytest.raises(NotSupported, match="a folder of your own is refused"):
        agent.fetch_best("r-000000", into=tmp_path / "best")
