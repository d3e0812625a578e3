"""The part of ``wiring`` that builds what plans are made from: recipes, prices, data sets, this
machine. It opens no ledger, so that ``plan`` starts quickly."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from trmcloud.core.catalog.providers import TRAITS, direct, find_traits, rentable
from trmcloud.core.spec.settings import FAMILIES
from trmcloud.io.families import FamilyFolders
from trmcloud.operations.home import bound_principal, bundle_root, families_folder, home_dir
from trmcloud.operations.plans.planning import FundsReader, Planner, no_funds
from trmcloud.providers.protocol import Site
from trmcloud.providers.registry import Providers, fill_profiles

if TYPE_CHECKING:
    from trmcloud.adapters.prices.tables import PriceTables, Source
    from trmcloud.core.catalog.datasets import DataSet
    from trmcloud.core.catalog.goals import Goal
    from trmcloud.core.catalog.hardware import LocalMachine
    from trmcloud.core.catalog.offers import Offer
    from trmcloud.core.control.events import DataPinned
    from trmcloud.core.spec.guides import Guide
    from trmcloud.core.spec.recipe import Recipe
    from trmcloud.core.spec.spec import DataSource
    from trmcloud.export.script import SkyNames
    from trmcloud.operations.sending.data import CheckedFile


FAMILIES.provide(FamilyFolders(families_folder))


class LocalPlanInputs:
    """``PlanInputs`` of this machine and the home at ``home``."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._providers = _providers(home)

    def recipe(self, name: str) -> Recipe:
        from trmcloud.adapters.files import load_recipe

        return load_recipe(name)

    def goal(self, name: str) -> Goal:
        from trmcloud.adapters.files import load_goal

        return load_goal(name)

    def live_prices(self, now: float, providers: Sequence[str]) -> tuple[Sequence[Offer], str]:
        asked = (name for name in direct() if name in providers and TRAITS[name].prices.live)
        told = [self._providers[name].live_prices(now) for name in asked]
        offers = [offer for found, _ in told for offer in found]
        return offers, "; ".join(why for _, why in told if why)

    def offers(self, now: float, live: Sequence[Offer]) -> list[Offer]:
        from trmcloud.adapters.prices.tables import load_offers

        return load_offers(now, self._home, live=live)

    def machine(self) -> LocalMachine:
        return local_machine()

    def data_source(self, name: str) -> DataSource:
        from trmcloud.adapters.files import source_of

        return source_of(name)

    def pinned_source(self, source: DataSource) -> tuple[DataSource, DataPinned | None]:
        from trmcloud.adapters.data_hosts import pin_to_commit
        from trmcloud.core.control.events import DataPinned
        from trmcloud.core.values import replace

        found = pin_to_commit(source.data_set) if source.data_set is not None else None
        if found is None:
            return source, None
        pinned = replace(source, data_set=found.data_set)
        return pinned, DataPinned(
            source.name, found.repository, found.branch, found.revision, found.data_set.listing
        )

    def pods_can_upload(self) -> bool:
        from trmcloud.adapters.s3 import settings

        return settings.supports_presigned(settings.endpoint(os.environ))

    def enabled_clouds(self) -> Sequence[str]:
        return [name for provider in self._providers.each() for name in provider.enabled()]


def build_planner(
    home: Path | None = None,
    clock: Callable[[], float] = time.time,
    funds: FundsReader = no_funds,
    principal: str | None = None,
) -> Planner:
    """Return the planner of one command, under ``home`` or the user's own; ``funds`` reads what is
    free of a provider's balance. ``principal``: whose plans it makes; None: as the environment
    says."""
    where = home_dir(os.environ) if home is None else home
    whose = bound_principal(os.environ) if principal is None else principal
    return Planner(LocalPlanInputs(where), where, clock, funds, whose)


def local_machine() -> LocalMachine:
    from trmcloud.adapters.local.machine import this_machine

    return this_machine()


def data_sets() -> list[DataSet]:
    """Every data set that goes by a name, by name."""
    from trmcloud.adapters.files import all_data_sets

    return all_data_sets()


def data_set(name: str) -> DataSet:
    """
    Raises:
        NotFoundError: no such data set. UsageError: its file is damaged.
    """
    from trmcloud.adapters.files import load_data_set

    return load_data_set(name)


def check_data_files(found: DataSet, *, whole: bool) -> Iterator[CheckedFile]:
    """Check that its files can be had from their hosts; ``whole``: every one of them."""
    from trmcloud.adapters.data_hosts import check_files

    return check_files(found, whole=whole)


def recipes() -> list[Recipe]:
    """Every recipe that goes by a name, by name."""
    from trmcloud.adapters.files import load_recipe, recipe_names

    return [load_recipe(name) for name in recipe_names()]


def goals() -> list[Goal]:
    """Every goal that goes by a name, in the table's order."""
    from trmcloud.adapters.files import load_goals

    return list(load_goals().values())


def guides() -> list[Guide]:
    """What is claimed of recipes, by family."""
    return [guide for family in FAMILIES.values() for guide in family.guides.values()]


def known_offers(now: float) -> list[Offer]:
    """Every offer known at ``now`` (epoch s), no live ones among them."""
    return offers_of_home(home_dir(os.environ), now)


def offers_of_home(home: Path, now: float) -> list[Offer]:
    """Likewise, of the home at ``home``."""
    return LocalPlanInputs(home).offers(now, ())


def shipped_offers(now: float) -> list[Offer]:
    """Those of the table that comes with this version, the same on every machine."""
    from trmcloud.adapters.prices.tables import load_offers

    return load_offers(now)


def price_tables() -> PriceTables:
    """The tables of offers of the user's home, and the sources that refresh them."""
    from trmcloud.adapters.prices.tables import PriceTables

    return PriceTables(home_dir(os.environ), partial(price_sources, os.environ))


def price_sources(environ: Mapping[str, str]) -> list[Source]:
    """Return the sources of live prices, the best first."""
    providers = _providers(home_dir(environ), environ)
    return [source for provider in providers.each() for source in provider.price_sources()]


def has_account(provider: str) -> bool:
    """Whether what ``provider`` rents out can be named, and there is a key of an account there."""
    is_rentable = find_traits(provider) is not None and provider in rentable()
    return is_rentable and _providers(home_dir(os.environ))[provider].has_access()


def simulate_providers() -> None:
    """Give the simulator each provider's profile."""
    fill_profiles()


def task_names() -> SkyNames:
    """The words of the program for which ``trmcloud export`` writes task files."""
    told = (provider.task_names() for provider in _providers(home_dir(os.environ)).each())
    return next(names for names in told if names is not None)


def _providers(home: Path, environ: Mapping[str, str] | None = None) -> Providers:
    """Providers that are asked for prices and names: nothing is rented from these."""
    environ = os.environ if environ is None else environ
    return Providers(Site(home, environ, str, bundle_root, list))
