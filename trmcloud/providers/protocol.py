"""The protocol of a provider: its duties, and its view of this machine.

It stands here and not among the ports, since it names what use cases and the simulator ask of a
provider beyond renting; only ``wiring`` calls it. A provider's folder, here or in another package,
holds

    traits.py     TRAITS: a ``ProviderTraits`` for each name under which it rents
    provider.py   PROVIDER: its subclass of ``Provider``, whose methods import what is heavy
    profile.py    PROFILES: a ``ProviderProfile`` for each way it behaves in the simulator
    self_end.py   how its pods end themselves, where they can: standard library only, Python 3.10,
                  since it is sent to the pod. ``ways(environment, tools)`` gives (name, callable)
                  pairs made of ``pod.agent.terminate.Tools``; ``SECRETS`` names variables that a
                  trainer must not see, ``TOLD_BY_PREFIX`` what is told to the first process alone,
                  ``MARK`` a variable that every container has; ``cluster_ways`` ends all machines
                  of a cluster from any of them

and whatever it needs beside. ``scripts/new_provider.py NAME`` writes one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trmcloud.core.errors import UsageError
from trmcloud.core.values import Value

if TYPE_CHECKING:
    from trmcloud.adapters.prices.tables import Source
    from trmcloud.core.catalog.offers import Offer
    from trmcloud.core.money import Usd
    from trmcloud.export.script import SkyNames
    from trmcloud.operations.checks.doctor import Finding
    from trmcloud.operations.checks.smoke_watch import SmokeSetting
    from trmcloud.operations.machines import Need
    from trmcloud.ports.compute import Compute, PodLink


class Site(Value):
    """This machine, as far as a provider needs it. ``home`` is the trmcloud home, ``environ`` the
    user's environment; ``ledger_id``, ``trainer`` (the trainer's package) and ``python_path``
    (where a process here imports from) are called when they are needed."""

    home: Path
    environ: Mapping[str, str]
    ledger_id: Callable[[], str]
    trainer: Callable[[], Path]
    python_path: Callable[[], Sequence[str]]


def no_smoke(name: str) -> UsageError:
    return UsageError(
        f"there is no smoke run for {name!r}: it tests the end of rented pods",
        next_step="trmcloud smoke --provider runpod --max-usd 0.25",
    )


class Provider(ABC):
    """One seller, or one program that rents from several; ``name`` is that of its traits. What not
    every provider has does nothing unless it says otherwise."""

    variables: tuple[str, ...] = ()
    """The variables that say how it is reached, and are no secret: handed on to the reaper's
    timer."""

    def __init__(self, site: Site) -> None:
        self.site = site

    @abstractmethod
    def compute(self, name: str) -> Compute:
        """
        Raises:
            AuthError: there is no key. ProviderError: what speaks to it is not installed.
        """

    @abstractmethod
    def link(self, name: str) -> PodLink:
        """The way to its pods.

        Raises:
            AuthError, ProviderError: as ``compute``.
        """

    def has_access(self) -> bool:
        """Whether machines could be rented from here: there is a key."""
        return False

    def was_used(self, name: str) -> bool:
        """Whether this home has traces of pods."""
        return (self.site.home / name).is_dir()

    def needs(self) -> Sequence[Need]:
        """Return the needs of renting on this machine."""
        from trmcloud.adapters.ssh.checks import ssh_needs

        return ssh_needs(self.site.home)

    def unseen_keys(self, elsewhere: Mapping[str, str]) -> Sequence[tuple[str, str, str]]:
        """Account keys that the user's environment gives and ``elsewhere`` does not: (variable,
        provider, the file from which both would read it)."""
        return ()

    def checks(self, rates: Mapping[str, Usd]) -> Sequence[Callable[[], Sequence[Finding]]]:
        """Return ``doctor``'s checks; ``rates`` are USD/h of planned rents, by name."""
        return ()

    def enabled(self) -> Sequence[str]:
        """Of a program that rents from several: those that it has access to.

        Raises:
            ProviderError: it is not installed, too old, or cannot be asked.
        """
        return ()

    def live_prices(self, now: float) -> tuple[Sequence[Offer], str]:
        """(what can be rented at ``now`` (epoch s); why that could not be read within seconds).
        Nothing where there is no key to ask with."""
        return (), ""

    def price_sources(self) -> Sequence[Source]:
        """Return the sources of ``prices refresh``, the best first."""
        return ()

    def smoke(self, name: str, known: Callable[[float], Sequence[Offer]]) -> SmokeSetting:
        """Return the interface of a smoke run beyond the ports. ``known`` gives every offer of the
        tables.

        Raises:
            UsageError: nothing is rented. AuthError, ProviderError: as ``compute``.
        """
        raise no_smoke(name)

    def task_names(self) -> SkyNames | None:
        """Its words for a task file, where ``trmcloud export`` can write one for it."""
        return None
