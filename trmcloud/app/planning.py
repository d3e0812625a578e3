"""From what was typed to a Plan: what ``plan``, ``launch``, ``rehearse`` and ``export`` share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trmcloud.app import plans, probes
from trmcloud.app.data.sources import resolve_source
from trmcloud.app.rent_from import rent_from
from trmcloud.core.catalog.hardware import LOCAL
from trmcloud.core.catalog.providers import direct, find_traits
from trmcloud.core.errors import DataError
from trmcloud.core.planner.command_outlook import recipe_of
from trmcloud.core.planner.planning import make_plan
from trmcloud.core.spec.plan import LIVE_PRICES, TEST_SETTINGS, Plan
from trmcloud.core.spec.recipe import Recipe
from trmcloud.core.spec.spec import DataSource, RunSpec
from trmcloud.core.values import replace
from trmcloud.options import LaunchRequest, spec_of
from trmcloud.ports.plan_inputs import ENV_TEST_SETTINGS, PlanInputs

if TYPE_CHECKING:
    from trmcloud.core.catalog.hardware import LocalMachine
    from trmcloud.core.catalog.offers import Offer
    from trmcloud.core.planner.command_outlook import Probed

BYTES_PER_TOKEN = {"bpe": 4.2, "char": 1.0}
"""English text per token: about 4.2 bytes at a vocabulary of 65,536."""


class Planner:
    """Makes one command's plans, from recipes, prices and a machine that are looked at once.

    Where one with live prices is among those that may be rented from, and there is a key, they are
    asked for; where they do not come within seconds the dated ones serve, and each plan says so
    among its limits. ``clock`` gives epoch seconds.
    """

    def __init__(self, inputs: PlanInputs, home: Path, clock: Callable[[], float]) -> None:
        self.inputs, self._home, self._clock = inputs, home, clock
        self._recipes: dict[str, Recipe] = {}
        self._machine: LocalMachine | None = None
        self._live: tuple[Sequence[Offer], str] | None = None
        self._offers: dict[bool, list[Offer]] = {}

    def recipe(self, name: str) -> Recipe:
        if name not in self._recipes:
            self._recipes[name] = self.inputs.recipe(name)
        return self._recipes[name]

    def machine(self) -> LocalMachine:
        self._machine = self._machine or self.inputs.machine()
        return self._machine

    def spec(self, request: LaunchRequest, providers: Sequence[str] | None = None) -> RunSpec:
        """The checked wish. ``providers``: those that ``request`` names, where None.

        Raises:
            UsageError: naming the option at fault.
        """
        named = request.provider if providers is None else providers
        can_upload = not request.bucket or self.inputs.pods_can_upload()
        return spec_of(request, named, self._clock(), pods_can_upload=can_upload)

    def spec_to_launch(self, request: LaunchRequest) -> RunSpec:
        """Likewise, from those that this version rents from: the usual one where none is named.

        Raises:
            UsageError: nothing is rented from one that is named. DoesNotFit: the program that rents
                for us has access to none.
        """
        providers = rent_from(
            request.hardware,
            request.provider,
            request.via,
            key_allowed=request.allow_key,
            enabled=self.inputs.enabled_clouds,
        )
        return self.spec(request, providers)

    def plan(
        self,
        spec: RunSpec,
        *,
        tokens_available: int | None = None,
        machine: LocalMachine | None = None,
    ) -> Plan:
        """The plan as of now, not saved. ``tokens_available``: of the training data, where that is
        known; else what a text's size suggests. ``machine``: in place of this one.

        Raises:
            UsageError, NotFoundError, DoesNotFit, BudgetRefused: see ``make_plan``.
        """
        now = self._clock()
        recipe = recipe_of(spec.command) if spec.command else self.recipe(spec.recipe)
        offers, told = self._known_offers(spec, now)
        plan = make_plan(
            spec,
            recipe,
            offers,
            now,
            plans.new_id(self._home, spec, now),
            local=machine or self.machine(),
            tokens_available=tokens_available or _tokens_in(spec, recipe),
            measured=probes.load(self._home),
            probed=self._probed(spec),
            source=self._source(spec, recipe),
        )
        if told:
            plan = replace(plan, limits={**plan.limits, LIVE_PRICES: told})
        if recipe.test_settings:
            put = ", ".join(f"{key} = {value}" for key, value in recipe.test_settings.items())
            told = f"not the recipe's own, by {ENV_TEST_SETTINGS}: {put}"
            plan = replace(plan, limits={**plan.limits, TEST_SETTINGS: told})
        return plan

    def save(self, plan: Plan) -> Plan:
        """Keep it under the user's home.

        Raises:
            ConflictError: the folder cannot be written.
        """
        plans.save(self._home, plan)
        return plan

    def _known_offers(self, spec: RunSpec, now: float) -> tuple[Sequence[Offer], str]:
        """(what may be rented, what is to be said of live prices)"""
        if spec.hardware == LOCAL:
            return [], ""
        live: Sequence[Offer] = ()
        told = ""
        found = map(find_traits, spec.providers or direct()[:1])
        named = [traits for traits in found if traits is not None]
        asks = any(traits.live_prices for traits in named)
        if asks:
            if self._live is None:
                self._live = self.inputs.live_prices(now)
            live, missed = self._live
            if missed:
                told = f"not read: {missed}; dated ones are planned with"
            elif live:
                told = " and ".join(f"{name}'s" for name in dict.fromkeys(o.provider for o in live))
        if asks not in self._offers:
            self._offers[asks] = self.inputs.offers(now, live)
        offers = self._offers[asks]
        # A program that rents for us rents a provider's own hosts, never private ones.
        renamed = [
            offer._replace(provider=traits.name)
            for traits in named
            for offer in offers
            if offer.provider == traits.prices_of and not offer.is_community
        ]
        return [*offers, *renamed], told

    def _probed(self, spec: RunSpec) -> Probed | None:
        """What a probe measured of the very command that is to run."""
        if spec.command is None:
            return None
        from trmcloud.app.measured_commands import probe_of  # with what reads runs

        return probe_of(self._home, spec.command.words)

    def _source(self, spec: RunSpec, recipe: Recipe) -> DataSource | None:
        """What it is to train on; None where that is still to be named, or is not there."""
        if spec.command is not None:
            size = _bytes_in(Path(spec.data)) if spec.data else 0
            return DataSource(spec.data, sent_bytes=size)
        own = recipe.shared.get("data", "")
        named = spec.data or str(dict(spec.overrides).get("data", own))
        if not named:
            return None
        try:
            return self.inputs.data_source(resolve_source(named))
        except DataError:
            if spec.data:
                return None  # a launch refuses it; a plan may be of text that is elsewhere
            raise


def _tokens_in(spec: RunSpec, recipe: Recipe) -> int | None:
    """About how many tokens a file or folder holds; None where it is no path, or no text."""
    path = Path(spec.data).expanduser()
    if not spec.data or spec.command is not None or not path.exists():
        return None
    each = BYTES_PER_TOKEN.get(str(recipe.shared.get("tokenizer", "bpe")), 1.0)
    return int(_bytes_in(path) / each)


def _bytes_in(path: Path) -> int:
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
    return sum(each.stat().st_size for each in files)
