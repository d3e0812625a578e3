"""Which layers of each provider end a pod with this machine off: the table of the audit of November
2026, row by row, and what a launch asks for because of it."""

from __future__ import annotations

from typing import NamedTuple

import pytest

import trmcloud.providers.registry  # noqa: F401 (fills the traits)
from trmcloud.core.catalog.providers import OUR_LAYERS, TRAITS, require_rented, traits_of
from trmcloud.core.control.budget import exposure_of, unaccepted_exposure
from trmcloud.core.errors import UsageError
from trmcloud.core.money import Usd

NOW, RATE = 1_800_000_000.0, Usd("3")


class Row(NamedTuple):
    """``own``: layers that are the provider's or SkyPilot's. ``agent``: the agent can end the pod.
    ``exposed``: until it is set up nothing of its own ends it."""

    own: tuple[str, ...]
    agent: bool
    exposed: bool
    account_key: bool = False


CLUSTER = Row(("autostop",), agent=True, exposed=True)
TABLE = {
    "runpod": Row(("prepaid",), agent=True, exposed=False),
    "huggingface": Row(("timeout",), agent=True, exposed=False),
    "vast": Row((), agent=True, exposed=False),
    "aws": Row(("autostop", "shutdown"), agent=True, exposed=True),
    "gcp": CLUSTER,
    "azure": CLUSTER,
    "nebius": CLUSTER,
    "lambda": CLUSTER,
    "digitalocean": CLUSTER,
    "skypilot": CLUSTER,
    "vast-ai": CLUSTER._replace(account_key=True),
    "skypilot-runpod": CLUSTER._replace(account_key=True),
    "verda": Row((), agent=False, exposed=True),
}


def test_the_table_has_every_provider_that_is_rented() -> None:
    assert set(TABLE) == {name for name, traits in TRAITS.items() if traits.rented}


@pytest.mark.parametrize("name", TABLE)
def test_a_provider_has_the_layers_of_its_row(name: str) -> None:
    row, traits = TABLE[name], traits_of(name)
    assert traits.layers.standard == (*OUR_LAYERS, *row.own)
    agent = ("agent",) if row.agent else ()
    assert traits.layers.independent == (*agent, *row.own, "guard-elsewhere")
    assert traits.route.account_key_on_pod == row.account_key


@pytest.mark.parametrize("name", TABLE)
def test_what_is_set_up_later_does_not_do_for_a_launch(name: str) -> None:
    """Of all that can be proven on the provider's own machines, without a guard elsewhere."""
    row, traits = TABLE[name], traits_of(name)
    proven = {(name, layer): NOW for layer in ("agent", *row.own) if layer != "prepaid"}
    exposure = exposure_of(traits, proven, NOW)
    assert not exposure.enough or not row.exposed
    refused = unaccepted_exposure(traits, proven, RATE, None, NOW)
    if row.exposed:
        assert refused is not None
        assert exposure.begins_exposed == bool(exposure.verified)
    assert unaccepted_exposure(traits, {}, RATE, RATE, NOW) is None, "the user's word will do"


def test_verda_has_one_layer_alone_and_so_is_always_exposed() -> None:
    guarded = {("verda", "guard-elsewhere"): NOW}
    refused = unaccepted_exposure(traits_of("verda"), guarded, RATE, None, NOW)
    assert refused is not None
    assert refused.verified == ("guard-elsewhere",)


def test_vast_is_not_rented_through_skypilot() -> None:
    with pytest.raises(UsageError, match="no longer rented through SkyPilot") as refused:
        require_rented("vast-ai")
    assert refused.value.next_step == "use --provider vast without --via"
