"""Quotes and launches on record: a key is claimed once, and the folder stays bounded."""

from __future__ import annotations

from pathlib import Path

import pytest

from trmcloud.core.errors import ConflictError, NotFoundError, UsageError
from trmcloud.core.money import Usd
from trmcloud.mcp.quotes import MOST_CLAIMS, Launches, Quote, Quotes

NOW = 1_000_000.0


def a_quote(number: int = 0, expires_at: float = NOW + 60) -> Quote:
    return Quote(
        f"p-{number:04x}", "agent", NOW, expires_at, Usd("0.50"), ("python",), "/p",
        {"budget": "0.50"}, ("lr=1|2",),
    )  # fmt: skip


def claims(home: Path) -> set[str]:
    return {path.name for path in (home / "mcp" / "launches").iterdir()}


def test_a_quote_is_read_as_it_was_kept_and_one_of_before_sweeps_too(tmp_path: Path) -> None:
    quotes = Quotes(tmp_path, "agent")
    quotes.keep(a_quote())
    assert quotes.find("p-0000") == a_quote()
    [path] = tmp_path.rglob("p-0000.json")
    path.write_text(path.read_text().replace(', "space": ["lr=1|2"]', ""))
    assert quotes.find("p-0000").space == ()
    with pytest.raises(NotFoundError):
        Quotes(tmp_path, "other").find("p-0000")


def test_a_key_is_claimed_once(tmp_path: Path) -> None:
    launches, quote = Launches(tmp_path, "agent"), a_quote()
    assert launches.find("k", quote, {}) is None
    first = launches.claim("k", quote, {})
    assert launches.claim("k", quote, {}) == first
    assert first.ledger_key == "mcp:agent:k"
    with pytest.raises(ConflictError, match="another quote"):
        launches.claim("k", a_quote(1), {})
    with pytest.raises(ConflictError, match="another name"):
        launches.claim("k", quote, {"name": "n"})
    with pytest.raises(UsageError):
        launches.claim("two words", quote, {})


def test_claims_that_are_over_are_removed_and_others_stay(tmp_path: Path) -> None:
    launches, others = Launches(tmp_path, "agent"), Launches(tmp_path, "other")
    for number in range(MOST_CLAIMS):
        claim = launches.claim(f"old-{number}", a_quote(number, NOW - 1), {})
        claim.result_path.write_text("{}")
    launches.prune(NOW, lambda path, key: True)
    assert len(claims(tmp_path)) == 2 * MOST_CLAIMS, "not before there are too many"
    current = launches.claim("current", a_quote(7, NOW + 1), {})
    foreign = others.claim("foreign", a_quote(7, NOW - 1), {})
    foreign.path.write_text(
        foreign.path.read_text().replace('"grant": "agent"', '"grant": "other"')
    )
    asked: list[str] = []

    def is_over(path: Path, key: str) -> bool:
        asked.append(key)
        return key != "mcp:agent:old-3"

    launches.prune(NOW, is_over)
    live = launches.find("old-3", a_quote(3, NOW - 1), {})
    assert live is not None
    left = {current.path.name, foreign.path.name, live.path.name, live.result_path.name}
    assert claims(tmp_path) == left
    assert len(asked) == MOST_CLAIMS, "neither the current nor the foreign one is looked at"
