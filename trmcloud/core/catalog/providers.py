"""What control must know of each provider: how it answers, and how it can be stopped."""

from __future__ import annotations

from typing import Mapping

from trmcloud.core.catalog.hardware import MAX_NODES
from trmcloud.core.errors import NotSupported
from trmcloud.core.values import dataclass, replace


@dataclass(frozen=True)
class ProviderTraits:
    """One provider's habits. Seconds throughout.

    ``create_settle_s``: how long after an ambiguous create a pod may still appear.
    ``absent_lists``: how many fresh lists in a row must omit a pod before it counts as gone.
    ``kill_latency_s``: from the decision to kill until nothing is billed any more.
    ``boot_deadline_s``: from the pod's creation until its agent must have reported.
    ``silence_s``: a report older than this is worth a warning; it proves nothing.
    ``kill_layers``: those this provider has, of those that docs/guide/budget.md lists.
    """

    name: str
    create_settle_s: float
    absent_lists: int
    kill_latency_s: float
    boot_deadline_s: float
    silence_s: float
    end_grace_s: float
    rate_tolerance: float
    kill_layers: tuple[str, ...]
    bill_wait_s: float = 20.0
    """How long a command waits for the bill of a pod that is gone."""
    hang_after_s: float = 300.0
    """A trainer that shows no step for so long is started again."""
    absent_s: float = 0.0
    """Where lists lag: how long a pod must be missing from all of them before it counts as gone."""
    absent_deleted_s: float = 0.0
    """Likewise, once the provider has taken its deletion."""
    independent_layers: tuple[str, ...] = ()
    """Those that work with this machine off; verified one by one for an account."""
    max_nodes: int = 1
    """Machines that can be had together, in one network."""
    shows_rate: bool = True
    """Whether its list says what a pod bills an hour, so that control can end one that is dearer
    than planned; where it does not, nothing caps the rent."""
    via_skypilot: bool = False
    """Whether only SkyPilot rents there."""
    title: str = ""
    """Its name as it writes it itself, where it is rented without SkyPilot."""
    prices_of: str = ""
    """Whose offers are its own, where they are listed under another name."""
    live_prices: bool = False
    """Whether its prices are asked for as a plan is made, where there is a key."""
    network_volumes: bool = False
    """Whether disks that outlive a pod can be rented there."""
    account_key_on_pod: bool = False
    """Whether its pods hold a key to the whole account, and that must be allowed each time: there
    is a way without, or the host is a private person."""
    beware: str = ""
    """What whoever plans it is to know."""

    @property
    def rented(self) -> bool:
        """Whether its pods cost somebody's rent."""
        return self.name != "local"


def local_terminate_wait_s(*, watchdog_stopped: bool) -> float:
    """How long a command lets a pod's watchdog on this machine end it, before it does so itself.

    With the time until it looks again (half a second) that is well within the kill latency. A
    watchdog that is stopped (SIGSTOP) is not waited for.
    """
    return 0.0 if watchdog_stopped else 1.0


RUNPOD_BY_SKYPILOT = "skypilot-runpod"
"""RunPod rented through SkyPilot, which copies the account's key to the pod."""
RUNPOD_BY_SKYPILOT_ENDS = (
    "SkyPilot 0.14 reaches RunPod by GraphQL, which RunPod ends in early 2027, and has no network"
    " volumes there any more; without --via skypilot RunPod is rented by its own API"
)
"""Its volumes were made by REST v1, which ended on 2026-11-15."""


def _through_skypilot(
    name: str,
    own: tuple[str, ...],
    *,
    boot_deadline_s: float = 1200.0,
    agent_ends: bool = True,
    max_nodes: int = MAX_NODES,
) -> ProviderTraits:
    """``own``: the layers that are the cloud's or SkyPilot's; ``agent_ends``: whether the agent can
    end the machine with what is on it."""
    ending = ("agent", *own) if agent_ends else own
    return ProviderTraits(
        name=name,
        create_settle_s=600.0,
        absent_lists=3,
        kill_latency_s=120.0,
        boot_deadline_s=boot_deadline_s,
        silence_s=120.0,
        end_grace_s=90.0,
        rate_tolerance=0.0,
        absent_s=300.0,
        absent_deleted_s=30.0,
        kill_layers=("trainer", "agent", "watchdog", "controller", "reap", *own),
        independent_layers=(*ending, "guard-elsewhere"),
        max_nodes=max_nodes,
        shows_rate=False,
        via_skypilot=True,
    )


TRAITS: Mapping[str, ProviderTraits] = {
    "local": ProviderTraits(
        name="local",
        create_settle_s=1.0,
        absent_lists=1,
        kill_latency_s=3.0,
        boot_deadline_s=60.0,
        silence_s=15.0,
        end_grace_s=10.0,
        rate_tolerance=0.0,
        kill_layers=("trainer", "agent", "watchdog", "controller", "reap"),
        hang_after_s=120.0,
    ),
    "runpod": ProviderTraits(
        name="runpod",
        create_settle_s=600.0,
        absent_lists=3,
        kill_latency_s=60.0,
        boot_deadline_s=900.0,
        silence_s=120.0,
        end_grace_s=60.0,
        rate_tolerance=0.0,
        absent_s=300.0,
        absent_deleted_s=30.0,
        kill_layers=("trainer", "agent", "watchdog", "controller", "reap", "prepaid"),
        independent_layers=("agent", "prepaid", "guard-elsewhere"),
        title="RunPod",
        live_prices=True,
        network_volumes=True,
    ),
    # A cloud through SkyPilot whose own ways to end a machine are not known.
    "skypilot": _through_skypilot("skypilot", ("autostop",)),
    # Its instances end when they are shut down, once that is set; stopped ones bill their disks.
    "aws": _through_skypilot("aws", ("autostop", "shutdown"), boot_deadline_s=900.0),
    "gcp": _through_skypilot("gcp", ("autostop",)),
    "azure": _through_skypilot("azure", ("autostop",)),
    "lambda": _through_skypilot("lambda", ("autostop",)),
    "nebius": _through_skypilot("nebius", ("autostop",)),
    # SkyPilot joins no machines of these: what lies between them is anybody's.
    "vast-ai": replace(
        _through_skypilot("vast-ai", ("autostop",), max_nodes=1),
        account_key_on_pod=True,
        beware="the account's API key is on the machine, which is a private person's computer",
    ),
    "digitalocean": _through_skypilot("digitalocean", ("autostop",)),
    # SkyPilot knows no autodown there: a machine cannot end itself.
    "verda": _through_skypilot("verda", (), agent_ends=False, max_nodes=1),
    RUNPOD_BY_SKYPILOT: replace(
        _through_skypilot(RUNPOD_BY_SKYPILOT, ("autostop", "prepaid"), max_nodes=1),
        prices_of="runpod",
        live_prices=True,
        account_key_on_pod=True,
        beware=RUNPOD_BY_SKYPILOT_ENDS,
    ),
}


RENTABLE = tuple(name for name in TRAITS if name not in ("local", "skypilot"))
"""Whom a user may name with ``--provider``."""
BY_SKYPILOT = tuple(name for name in RENTABLE if TRAITS[name].via_skypilot)
DIRECT = tuple(name for name in RENTABLE if not TRAITS[name].via_skypilot)
"""Those rented by an interface of their own; the first is rented from where nobody is named."""
NOBODY_RENTS = f"neither {' nor '.join(TRAITS[name].title for name in DIRECT)} nor in SkyPilot"
"""What is to be said of any other."""


def max_nodes(provider: str) -> int:
    """Machines that can be had together there; one where nothing is known of it."""
    return TRAITS[provider].max_nodes if provider in TRAITS else 1


def traits_of(provider: str) -> ProviderTraits:
    try:
        return TRAITS[provider]
    except KeyError:
        raise NotSupported(
            f"nothing can be rented from {provider}: it is {NOBODY_RENTS}",
            next_step=f"one of: {', '.join((*DIRECT, *BY_SKYPILOT))}",
        ) from None
