"""What a principal cannot ask for: see also tests/e2e/test_grants.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trmcloud.api import Home
from trmcloud.app.commands import CommandRequest
from trmcloud.app.grants import NOT_FOR_PRINCIPALS
from trmcloud.core.errors import GrantRefused
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
