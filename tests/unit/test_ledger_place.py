"""Where a home's ledger is, as far as no database is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from trmcloud.adapters.ledger.moving import migrate
from trmcloud.adapters.ledger.place import (
    ENV_LEDGER,
    FILE,
    keep_url,
    open_existing,
    open_ledger,
    require_no_password,
)
from trmcloud.core.errors import UsageError

URL = "postgresql://ada:hidden@host/team"


def test_a_look_makes_no_ledger(tmp_path: Path) -> None:
    assert open_existing(tmp_path, {}) is None
    assert list(tmp_path.iterdir()) == []


def test_a_ledger_that_is_there_is_opened(tmp_path: Path) -> None:
    made = open_ledger(tmp_path, {}).ledger_id
    assert (tmp_path / FILE).exists()
    found = open_existing(tmp_path, {})
    assert found is not None
    assert found.ledger_id == made


def test_a_file_needs_no_migration(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="needs no migration") as refused:
        migrate(tmp_path, {})
    assert refused.value.where == str(tmp_path)


@pytest.mark.parametrize("url", ["", "postgresql://ada@host/team"])
def test_a_timer_may_show_a_url_without_a_password(tmp_path: Path, url: str) -> None:
    require_no_password(tmp_path, {ENV_LEDGER: url})


def test_a_timer_shows_no_password(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds a password") as refused:
        require_no_password(tmp_path, {ENV_LEDGER: URL})
    assert "hidden" not in f"{refused.value} {refused.value.next_step}"
    assert str(tmp_path / "ledger-url") in refused.value.next_step


def test_a_password_in_the_homes_own_file_is_no_hindrance(tmp_path: Path) -> None:
    """It is where a refusal says to write it: the timer's file shows the variable alone."""
    keep_url(tmp_path, URL)
    require_no_password(tmp_path, {})
