"""Who has to accept what could be spent while nothing of ours can act."""

from __future__ import annotations

from pathlib import Path

import pytest

from trmcloud.adapters.ledger.sqlite import SqliteLedger
from trmcloud.core.catalog.providers import TRAITS
from trmcloud.core.control import events as ev
from trmcloud.core.control.exposure import VERIFIED_FOR_S, Unaccepted, exposure_of, unaccepted
from trmcloud.core.errors import UsageError
from trmcloud.core.money import Usd

NOW = 1_800_000_000.0
RATE = Usd("14.32")
RUNPOD = TRAITS["runpod"]


def verified(*layers: str, age_s: float = 0.0) -> dict[tuple[str, str], float]:
    return {("runpod", layer): NOW - age_s for layer in layers}


def test_this_machine_exposes_nothing() -> None:
    assert unaccepted(TRAITS["local"], {}, RATE, None, NOW) is None


def test_rented_pods_need_two_layers_or_the_users_word() -> None:
    for counted in ((), ("agent",)):
        told = unaccepted(RUNPOD, verified(*counted), RATE, None, NOW)
        assert told == Unaccepted("runpod", RATE, is_capped=True, verified=counted)
    assert unaccepted(RUNPOD, verified("agent", "prepaid"), RATE, None, NOW) is None
    assert unaccepted(RUNPOD, {}, RATE, Usd("14.32"), NOW) is None
    assert unaccepted(RUNPOD, {}, RATE, Usd("14.31"), NOW) is not None


def test_where_nothing_caps_the_rent_only_the_users_word_will_do() -> None:
    aws = TRAITS["aws"]
    sure = {("aws", layer): NOW for layer in aws.independent_layers}
    told = unaccepted(aws, sure, RATE, None, NOW)
    assert told == Unaccepted("aws", RATE, is_capped=False, verified=None)
    told = unaccepted(aws, {}, RATE, None, NOW)
    assert told == Unaccepted("aws", RATE, is_capped=False, verified=())
    assert unaccepted(aws, sure, RATE, RATE, NOW) is None


def test_what_was_seen_long_ago_counts_no_more() -> None:
    old = verified("agent", "prepaid", age_s=VERIFIED_FOR_S + 1)
    assert unaccepted(RUNPOD, old, RATE, None, NOW) is not None
    assert exposure_of(RUNPOD, old, NOW).unverified == ("agent", "prepaid", "guard-elsewhere")


def test_another_providers_layers_do_not_count() -> None:
    others = {("aws", "agent"): NOW, ("aws", "shutdown"): NOW}
    assert unaccepted(RUNPOD, others, RATE, None, NOW) is not None


def test_the_ledger_remembers_what_was_verified(tmp_path: Path) -> None:
    ledger = SqliteLedger(tmp_path / "ledger.db")
    ledger.verify_layer(ev.LayerVerified("runpod", "agent", "smoke run"), NOW)
    again = SqliteLedger(tmp_path / "ledger.db").read()
    assert again.verified == {("runpod", "agent"): NOW}
    with pytest.raises(UsageError, match="no kill layer 'hope'"):
        ledger.verify_layer(ev.LayerVerified("runpod", "hope", "?"), NOW)
