"""A move to another machine, as screens and JSON tell of it."""

from __future__ import annotations

import pytest

from tests.unit.core.test_moving import AT, HOUR_S, apply, handed_over, left, standing, working
from trmcloud.app.narration import moved_words, moving_words
from trmcloud.app.run_views import pending_move
from trmcloud.core.control import events as ev
from trmcloud.core.control.report import MoveAccount, move_accounts
from trmcloud.core.errors import UsageError
from trmcloud.core.money import Usd
from trmcloud.options import parse_share


def test_a_move_is_told_with_its_stage_its_reservation_and_its_saving() -> None:
    assert moving_words(working()) == ""
    assert pending_move(working()) is None
    money = "$40.00 reserved for it · saves $12.00 of $30.00"
    assert moving_words(standing()) == f"a machine at vast gets ready · {money}"
    lands = "is ready: training stops here first and saves"
    assert moving_words(handed_over()) == f"a machine at vast {lands} · {money}"
    told = pending_move(handed_over())
    assert told is not None
    assert (told.generation, told.state, told.lands) == (2, "running", True)
    assert (told.reserved_usd, told.saves_usd, told.stays_usd) == (Usd(40), Usd(12), Usd(30))


def test_a_completed_move_is_told_with_what_it_cost_since() -> None:
    run = apply(left(), ev.Moved(2), at=AT + HOUR_S + 310.0)
    (account,) = move_accounts(run, AT + 2 * HOUR_S)
    assert (account.generation, account.provider, account.stays) == (2, "vast", Usd(30))
    assert not account.ended
    # An hour of the new one, and five minutes of the one that was left.
    assert Usd("2.3") < account.since < Usd("2.4")
    assert account.to_json()["saved_usd"] is None
    assert "staying would have cost $30.00" in moved_words(account)


@pytest.mark.parametrize(
    ("since", "words"),
    [
        ("18", "saved $12.00 of the $30.00 that staying would have cost"),
        ("31", "cost $1.00 more than staying: $30.00"),
    ],
)
def test_what_a_move_saved_is_told_once_the_run_has_ended(since: str, words: str) -> None:
    account = MoveAccount(AT, 2, "vast", Usd(30), Usd(since), ended=True)
    assert moved_words(account) == f"to generation 2 at vast · {words}"


@pytest.mark.parametrize("text", ["25%", "25", " 25.0% "])
def test_a_share_is_a_percentage(text: str) -> None:
    assert parse_share("--move-if", text) == 0.25


@pytest.mark.parametrize("text", ["0", "0%", "100%", "-5", "much", "nan", "inf", ""])
def test_what_is_no_percentage_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--move-if takes a percentage from 0 to 100"):
        parse_share("--move-if", text)
