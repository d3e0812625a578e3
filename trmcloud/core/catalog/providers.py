"""The traits of every provider: how it answers, how it can be stopped, and what it rents.

The rows are in each provider's own folder, ``trmcloud/providers/NAME/traits.py``. The registry puts
them into ``TRAITS`` when it is imported, as whatever builds adapters does first.
"""

from __future__ import annotations

from typing import Callable, Iterable

from trmcloud.core.catalog.interruptions import NOT_KNOWN, InterruptionRate
from trmcloud.core.errors import NotSupported, UsageError
from trmcloud.core.values import Value


class StoragePrices(Value):
    """One provider's disks; prices in micro-dollars per GB and month."""

    system_gb: int
    """The system disk: image, environment, temporary files."""
    least_work_gb: int
    """The smallest work disk that can be rented."""
    running: int
    stopped: int
    kept: int
    """A network volume's first 1,000 GB."""
    kept_beyond: int
    """The price above 1,000 GB."""
    traffic: int = 0
    """Micro-dollars per GB that goes to or from a pod; 0 where that is not billed."""


class RequestLimit(Value):
    """The most requests that an account may send within any ``window_s`` seconds."""

    requests: int
    window_s: float


UNKNOWN_STORAGE = StoragePrices(70, 0, 100_000, 100_000, 70_000, 50_000)
"""The disk prices where none are on record, as of SkyPilot's clouds: planned at RunPod's. SkyPilot
makes one disk of both, cannot stop a machine and keep it, and rents no network volume there."""


HANG_AFTER_S, LOCAL_HANG_AFTER_S = 300.0, 120.0
"""A trainer that shows no step for so long is started again, elsewhere and on this machine."""
OUR_LAYERS = ("trainer", "agent", "watchdog", "controller", "reap")
"""The kill layers that work wherever a pod is."""


class AbsenceProof(Value):
    """The evidence that is needed before a pod counts as gone."""

    lists: int
    """How many fresh lists in a row must omit it."""
    missing_s: float = 0.0
    """The time for which all lists must omit it, where lists lag."""
    deleted_s: float = 0.0
    """Likewise, once the provider has taken its deletion."""


class KillLayers(Value):
    """The kill layers of this provider's pods; docs/guide/budget.md describes each layer."""

    own: tuple[str, ...] = ()
    """Those that are the provider's."""
    independent: tuple[str, ...] = ()
    """Those that work with this machine off; verified one by one for an account."""
    armed_later: tuple[str, ...] = ()
    """Those of them that stand only once a machine is set up, minutes after its rent began. Until
    then a live command or a guard elsewhere alone would end it."""

    @property
    def standard(self) -> tuple[str, ...]:
        """Those of every pod; a guard elsewhere comes on top of them."""
        return (*OUR_LAYERS, *self.own)


class MachineTraits(Value):
    """The machines and disks that this provider rents out."""

    max_nodes: int = 1
    """Machines that can be had together, in one network."""
    has_spot: bool = False
    """Whether machines that may be taken away are rented there."""
    interruptions: InterruptionRate = NOT_KNOWN
    """How often those are taken away."""
    takes_image: bool = False
    """Whether a pod is a container of an image that the user may choose."""
    network_volumes: bool = False
    """Whether disks that outlive a pod can be rented there."""


class PriceTraits(Value):
    """The sources of this provider's prices, and whether a bill can exceed them."""

    storage: StoragePrices = UNKNOWN_STORAGE
    live: bool = False
    """Whether its prices are asked for as a plan is made, where there is a key."""
    listed_as: str = ""
    """The provider under whose name its offers are listed, where that is another one."""
    shows_rate: bool = True
    """Whether its list says what a pod bills an hour, so that control can end one that is dearer
    than planned; where it does not, nothing caps the rent."""
    rate_tolerance: float = 0.0
    """The part of the planned rate by which a pod's may be above it."""


class Route(Value):
    """The way by which it is rented from: one seller can be reached by several."""

    via: str = ""
    """The program that rents there for us, as it writes its name; ``--via`` takes it in lower case.
    Asking it takes seconds and may start its server, so a look alone does not. What it makes is a
    cluster, which it sets up before our agent starts. Empty where we speak to the provider."""
    can_be_named: bool = True
    """Whether a user may name it with ``--provider``."""
    instead: str = ""
    """The provider that is rented from in its place: nothing new is rented here, while pods of it
    are watched, shown and ended as before. Empty where it is rented from."""
    account_key_on_pod: bool = False
    """Whether its pods hold a key to the whole account, and that must be allowed each time: there
    is a way without, or the host is a private person."""
    beware: str = ""
    """A warning shown to the user who plans it."""


class ProviderTraits(Value):
    """One provider's habits. Seconds throughout.

    ``create_settle_s``: how long after an ambiguous create a pod may still appear.
    ``kill_latency_s``: from the decision to kill until nothing is billed any more.
    ``boot_deadline_s``: from the pod's creation until its agent must have reported.
    ``silence_s``: a report older than this is worth a warning; it proves nothing.
    """

    name: str
    create_settle_s: float
    absence: AbsenceProof
    kill_latency_s: float
    boot_deadline_s: float
    silence_s: float
    end_grace_s: float
    bill_wait_s: float = 20.0
    """The longest time that a command waits for the bill of a pod that is gone."""
    hang_after_s: float = HANG_AFTER_S
    """A trainer that shows no step for so long is started again."""
    smoke_minutes: float = 10.0
    """Life of a pod of ``trmcloud smoke``, its boot included, unless the user says otherwise."""
    title: str = ""
    """Its name as it writes it itself, where no other program rents there for us."""
    layers: KillLayers = KillLayers()
    machines: MachineTraits = MachineTraits()
    prices: PriceTraits = PriceTraits()
    route: Route = Route()
    request_limits: tuple[RequestLimit, ...] = ()
    """Those of its API for one account, as documented; empty where another program asks it."""

    @property
    def rented(self) -> bool:
        """Whether its pods cost somebody's rent."""
        return self.name != "local"


def local_terminate_wait_s(*, watchdog_stopped: bool) -> float:
    """Return the time that a command leaves to a pod's local watchdog before it ends the pod
    itself.

    With the time until it looks again (half a second) that is well within the kill latency. A
    watchdog that is stopped (SIGSTOP) is not waited for.
    """
    return 0.0 if watchdog_stopped else 1.0


TRAITS: dict[str, ProviderTraits] = {}
"""By name, in the order of the registry."""
_more: list[Callable[[], Iterable[ProviderTraits]]] = []
"""Reads the traits of providers that other packages add; called once, when a name is not known."""


def register(
    rows: Iterable[ProviderTraits], more: Callable[[], Iterable[ProviderTraits]] | None = None
) -> None:
    """Make providers known. ``more`` gives those of other packages, which take time to find."""
    for traits in rows:
        TRAITS.setdefault(traits.name, traits)
    if more is not None:
        _more.append(more)


def find_traits(provider: str) -> ProviderTraits | None:
    """The traits of any provider that is installed; None where there is none of that name."""
    if provider not in TRAITS:
        load_all()
    return TRAITS.get(provider)


def load_all() -> None:
    """Read the traits of other packages' providers, too: before all are listed."""
    while _more:
        register(_more.pop()())


def traits_of(provider: str) -> ProviderTraits:
    traits = find_traits(provider)
    if traits is None:
        raise NotSupported(
            f"machines cannot be rented from {provider}: it is {in_no_catalogue()}",
            next_step=f"one of: {', '.join((*direct(), *brokered()))}",
        )
    return traits


def rentable() -> tuple[str, ...]:
    """Providers that a user may name with ``--provider``."""
    return tuple(t.name for t in TRAITS.values() if t.rented and t.route.can_be_named)


def brokered() -> tuple[str, ...]:
    """Those of them that another program rents from for us: see ``Route.via``."""
    return tuple(name for name in rentable() if TRAITS[name].route.via)


def direct() -> tuple[str, ...]:
    """Those rented by an interface of their own; the first is rented from where none is named."""
    return tuple(name for name in rentable() if not TRAITS[name].route.via)


def require_rented(name: str) -> None:
    """
    Raises:
        UsageError: nothing new is rented from ``name``, since another one took its place.
    """
    traits = find_traits(name)
    if traits is not None and traits.route.instead:
        title = traits_of(traits.route.instead).title
        raise UsageError(
            f"{title} is no longer rented through {traits.route.via} ({name!r}), which copies the "
            "account's key to the host",
            next_step=f"use --provider {traits.route.instead} without --via",
        )


def has_spot(name: str) -> bool:
    """Whether spot machines are rented from ``name``."""
    return name in TRAITS and TRAITS[name].machines.has_spot


def is_brokered(provider: str) -> bool:
    return provider in TRAITS and bool(TRAITS[provider].route.via)


def in_no_catalogue() -> str:
    """Return the message about a provider that is not known."""
    titles = " nor ".join(TRAITS[name].title for name in direct())
    vias = dict.fromkeys(TRAITS[name].route.via for name in brokered())
    return " nor in ".join((f"neither {titles}", *vias))


def max_nodes(provider: str) -> int:
    """Machines that can be had together there; one where nothing is known of it."""
    return TRAITS[provider].machines.max_nodes if provider in TRAITS else 1
