"""Every provider: one row each, and those that other packages add.

Another package adds one through the entry-point group ``trmcloud.providers``; its value is the
folder as a package, as in the rows here. Entry points are read when a name is not known otherwise.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterable, Iterator

from trmcloud.core.catalog.providers import ProviderTraits, find_traits, load_all, register
from trmcloud.providers.protocol import Provider, Site

ENTRY_POINTS = "trmcloud.providers"
ROWS: dict[str, str] = {
    "local": "trmcloud.providers.local",
    "runpod": "trmcloud.providers.runpod",
    "skypilot": "trmcloud.providers.skypilot",
    "huggingface": "trmcloud.providers.huggingface",
    "vast": "trmcloud.providers.vast",
}
"""A provider's folder, as a package. The first one that is rented directly is the usual one."""
_folder_of: dict[str, str] = {}
"""Name of traits → folder."""


def _traits(packages: Iterable[str]) -> Iterator[ProviderTraits]:
    for package in packages:
        for traits in importlib.import_module(f"{package}.traits").TRAITS:
            _folder_of.setdefault(traits.name, package)
            yield traits


def _from_other_packages() -> Iterator[ProviderTraits]:
    from importlib.metadata import entry_points  # takes longer than all the rest

    for entry in entry_points(group=ENTRY_POINTS):
        try:
            yield from _traits((entry.value,))
        except Exception as error:  # it must not keep the others from being listed and ended
            why = f"{type(error).__name__}: {error}"
            warnings.warn(f"the provider {entry.name} cannot be used: {why}", stacklevel=1)


register(_traits(ROWS.values()), _from_other_packages)


class Providers:
    """The providers of one site by the names of their traits, each made when it is first asked for;
    two names of one folder give the same one."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._made: dict[str, Provider] = {}

    def __getitem__(self, name: str) -> Provider:
        find_traits(name)
        return self._of(_folder_of[name])

    def each(self) -> list[Provider]:
        """Every provider once, those of other packages among them."""
        load_all()
        return [self._of(package) for package in dict.fromkeys(_folder_of.values())]

    def _of(self, package: str) -> Provider:
        if package not in self._made:
            made: type[Provider] = importlib.import_module(f"{package}.provider").PROVIDER
            self._made[package] = made(self._site)
        return self._made[package]


def fill_profiles() -> None:
    """Give the simulator the habits of every provider."""
    from trmcloud.sim.world.provider_profiles import PROFILES

    load_all()
    for package in dict.fromkeys(_folder_of.values()):
        for profile in importlib.import_module(f"{package}.profile").PROFILES:
            PROFILES[profile.provider] = profile
