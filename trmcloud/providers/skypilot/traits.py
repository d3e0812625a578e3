"""The traits of every cloud that is rented through SkyPilot, and of SkyPilot itself."""

from __future__ import annotations

from collections.abc import Mapping

from trmcloud.core.catalog import providers as catalog
from trmcloud.core.catalog.hardware import MAX_NODES
from trmcloud.core.catalog.interruptions import NOT_KNOWN, InterruptionRate, per_hour_of_a_day
from trmcloud.core.values import replace

RUNPOD_BY_SKYPILOT = "skypilot-runpod"
"""RunPod rented through SkyPilot, which copies the account's key to the pod."""
RUNPOD_BY_SKYPILOT_ENDS = (
    "SkyPilot 0.14 uses RunPod's GraphQL, which ends in early 2027, and no longer has network "
    "volumes there; without --via skypilot RunPod is rented through its own API"
)
"""Its volumes were made by REST v1, which ended on 2026-11-15."""

CLOUDS: Mapping[str, str] = {
    "aws": "aws",
    "azure": "azure",
    "digitalocean": "do",
    "gcp": "gcp",
    "lambda": "lambda",
    "nebius": "nebius",
    RUNPOD_BY_SKYPILOT: "runpod",
    "vast-ai": "vast",
    "verda": "verda",
}
"""Our providers in SkyPilot's words."""

_READ_ON = "2026-11-25"
INTERRUPTIONS: Mapping[str, InterruptionRate] = {
    # The feed behind the advisor (spot-advisor-data.json, copy of 2025-06-28). Eight H100 in eleven
    # regions: <5 % in two, 5 to 10 % in five, >20 % in one; eight A100 in ten: <5 % in five, >20 %
    # in three. A share of a month's machines, which says nothing of how long those had run.
    "aws": InterruptionRate(
        None, "<5 % to >20 % a month, by type and region", "AWS Spot Instance Advisor", _READ_ON
    ),
    # Google's page about preemptible machines said so of all kinds, a seven-day average that "may
    # spike"; quoted from it by others. The page of today has no number: the upper end is taken.
    "gcp": InterruptionRate(
        per_hour_of_a_day(0.15), "5 to 15 % a day, of all kinds", "Google, formerly", _READ_ON
    ),
    # By size and region, as a share an hour, in the portal and its API: to subscribers alone.
    "azure": InterruptionRate(None, "only to subscribers, in its portal", "Azure", _READ_ON),
}
"""Statements of clouds about their spot machines. DigitalOcean, Lambda, Nebius and Verda were not
searched by name."""


_ROUTE = catalog.Route(via="SkyPilot")
_PRICES = catalog.PriceTraits(shows_rate=False)


def _cloud(
    name: str,
    own: tuple[str, ...],
    *,
    boot_deadline_s: float = 1200.0,
    max_nodes: int = MAX_NODES,
    prices: catalog.PriceTraits = _PRICES,
    route: catalog.Route = _ROUTE,
) -> catalog.ProviderTraits:
    """``own``: the layers that are the cloud's or SkyPilot's. Without one the agent cannot end the
    machine either, with what is on it."""
    ending = ("agent", *own) if own else ()
    return catalog.ProviderTraits(
        name=name,
        create_settle_s=600.0,
        absence=catalog.AbsenceProof(lists=3, missing_s=300.0, deleted_s=30.0),
        kill_latency_s=120.0,
        boot_deadline_s=boot_deadline_s,
        silence_s=120.0,
        end_grace_s=90.0,
        smoke_minutes=30.0,
        layers=catalog.KillLayers(own, (*ending, "guard-elsewhere"), armed_later=ending),
        machines=catalog.MachineTraits(max_nodes, True, INTERRUPTIONS.get(name, NOT_KNOWN)),
        prices=prices,
        route=route,
    )


TRAITS = (
    # A cloud through SkyPilot whose own ways to end a machine are not known.
    _cloud("skypilot", ("autostop",), route=replace(_ROUTE, can_be_named=False)),
    # Its instances end when they are shut down, once that is set; stopped ones bill their disks.
    _cloud("aws", ("autostop", "shutdown"), boot_deadline_s=900.0),
    _cloud("gcp", ("autostop",)),
    _cloud("azure", ("autostop",)),
    _cloud("lambda", ("autostop",)),
    _cloud("nebius", ("autostop",)),
    # SkyPilot joins no machines of these: the network between them is not theirs alone.
    _cloud(
        "vast-ai",
        ("autostop",),
        max_nodes=1,
        route=replace(
            _ROUTE,
            # Rented by its own API now. Clusters made before are still watched and ended.
            instead="vast",
            account_key_on_pod=True,
            beware="the account's API key is on the machine, a private person's computer",
        ),
    ),
    _cloud("digitalocean", ("autostop",)),
    # SkyPilot knows no autodown there: a machine cannot end itself.
    _cloud("verda", (), max_nodes=1),
    _cloud(
        RUNPOD_BY_SKYPILOT,
        ("autostop",),
        max_nodes=1,
        prices=replace(_PRICES, live=True, listed_as="runpod"),
        route=replace(_ROUTE, account_key_on_pod=True, beware=RUNPOD_BY_SKYPILOT_ENDS),
    ),
)
