"""Who has to accept what could be spent while nothing of ours can act."""

from __future__ import annotations

from pathlib import Path

import pytest

from trmcloud.adapters.ledger_sqlite import SqliteLedger
from trmcloud.core import events as ev
from trmcloud.core.errors import UsageError
from trmcloud.core.exposure import VERIFIED_FOR_S, exposure_of, why_not_exposed
from trmcloud.core.money import Usd
from trmcloud.core.providers import TRAITS

NOW = 1_800_000_000.0
RATE = Usd("14.32")
RUNPOD = TRAITS["runpod"]


def verified(*layers: str, age_s: float = 0.0) -> dict[tuple[str, str], float]:
    return {("runpod", layer): NOW - age_s for layer in layers}


def test_this_machine_exposes_nothing() -> None:
    assert why_not_exposed(TRAITS["local"], {}, RATE, None, NOW) == ""


def test_rented_pods_need_two_layers_or_the_users_word() -> None:
    assert "are verified: none" in why_not_exposed(RUNPOD, {}, RATE, None, NOW)
    assert "are verified: agent" in why_not_exposed(RUNPOD, verified("agent"), RATE, None, NOW)
    assert why_not_exposed(RUNPOD, verified("agent", "prepaid"), RATE, None, NOW) == ""
    assert why_not_exposed(RUNPOD, {}, RATE, Usd("14.32"), NOW) == ""
    assert why_not_exposed(RUNPOD, {}, RATE, Usd("14.31"), NOW) != ""


def test_where_nothing_caps_the_rent_only_the_users_word_will_do() -> None:
    aws = TRAITS["aws"]
    sure = {("aws", layer): NOW for layer in aws.independent_layers}
    why = why_not_exposed(aws, sure, RATE, None, NOW)
    assert why.startswith("aws: nothing caps the rent, which is reserved at $14.32/h")
    assert "kill layers" not in why
    assert "kill layers" in why_not_exposed(aws, {}, RATE, None, NOW)
    assert why_not_exposed(aws, sure, RATE, RATE, NOW) == ""


def test_what_was_seen_long_ago_counts_no_more() -> None:
    old = verified("agent", "prepaid", age_s=VERIFIED_FOR_S + 1)
    assert why_not_exposed(RUNPOD, old, RATE, None, NOW) != ""
    assert exposure_of(RUNPOD, old, NOW).unverified == ("agent", "prepaid", "guard-elsewhere")


def test_another_providers_layers_do_not_count() -> None:
    others = {("aws", "agent"): NOW, ("aws", "shutdown"): NOW}
    assert why_not_exposed(RUNPOD, others, RATE, None, NOW) != ""


def test_the_ledger_remembers_what_was_verified(tmp_path: Path) -> None:
    ledger = SqliteLedger(tmp_path / "ledger.db")
    ledger.verify_layer(ev.LayerVerified("runpod", "agent", "smoke run"), NOW)
    again = SqliteLedger(tmp_path / "ledger.db").read()
    assert again.verified == {("runpod", "agent"): NOW}
    with pytest.raises(UsageError, match="no kill layer 'hope'"):
        ledger.verify_layer(ev.LayerVerified("runpod", "hope", "?"), NOW)
