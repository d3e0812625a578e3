"""From a request to a Plan, and the saved plans of a home."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trmcloud.app import measurements
from trmcloud.app.data import resolve_source
from trmcloud.app.home import make_home
from trmcloud.app.rent_from import rent_from
from trmcloud.core.catalog.hardware import LOCAL
from trmcloud.core.catalog.providers import direct, find_traits
from trmcloud.core.errors import ConflictError, DataError, NotFoundError, UsageError
from trmcloud.core.planner.command_outlook import recipe_of
from trmcloud.core.planner.planning import make_plan
from trmcloud.core.spec.plan import (
    LIVE_PRICES,
    TEST_SETTINGS,
    Plan,
    PlanTooNew,
    plan_from_json,
    plan_to_json,
)
from trmcloud.core.spec.recipe import Recipe
from trmcloud.core.spec.spec import DataSource, RunSpec
from trmcloud.core.values import replace
from trmcloud.io.files import write_atomic
from trmcloud.options import LaunchRequest, spec_of
from trmcloud.ports.plan_inputs import ENV_TEST_SETTINGS, PlanInputs

if TYPE_CHECKING:
    from trmcloud.core.catalog.hardware import LocalMachine
    from trmcloud.core.catalog.offers import Offer
    from trmcloud.core.planner.command_outlook import CommandProbe

# Saved plans: ``<home>/plans/p-7f3a.json``, written whole or not at all.

PLANS_DIR = "plans"
_ID = re.compile(r"p-[0-9a-f]{4,8}")
_KEPT = 200


def is_plan_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


def new_plan_id(home: Path, spec: RunSpec, now: float) -> str:
    """An id no saved plan bears: ``p-`` and four to eight hex digits of a hash."""
    digest = hashlib.sha256(f"{now!r} {json.dumps(spec.to_json())}".encode()).hexdigest()
    for length in range(4, 9):
        if not _path(home, f"p-{digest[:length]}").exists():
            break
    return f"p-{digest[:length]}"


def save_plan(home: Path, plan: Plan) -> Path:
    """Writes ``plan``; the oldest beyond two hundred go.

    Raises:
        ConflictError: the folder cannot be written.
    """
    path = _path(home, plan.id)
    try:
        make_home(home)
        path.parent.mkdir(exist_ok=True)
        write_atomic(path, json.dumps(plan_to_json(plan)))
        _forget_old(path.parent)
    except OSError as error:
        raise ConflictError(
            f"the plan cannot be saved: {error.strerror or error}",
            where=str(path.parent),
            next_step="set TRMCLOUD_HOME to a folder of yours that has room",
        ) from None
    return path


def load_plan(home: Path, plan_id: str, now: float) -> Plan:
    """The saved plan ``plan_id``.

    Raises:
        UsageError: not a plan's id, damaged, or expired at ``now`` (epoch s).
        NotFoundError: no such plan.
    """
    if not is_plan_id(plan_id):
        raise UsageError(f"{plan_id!r} is no plan's id", next_step="ids look like p-7f3a")
    path = _path(home, plan_id)
    try:
        plan = plan_from_json(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise NotFoundError(f"no plan {plan_id}", next_step="make one: trmcloud plan") from None
    except PlanTooNew:
        raise UsageError(
            f"plan {plan_id} was written by a newer version of trmcloud",
            where=str(path),
            next_step="pip install --upgrade trmcloud, or make another: trmcloud plan",
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is damaged"
        raise UsageError(
            f"plan {plan_id} cannot be read: {why}", where=str(path), next_step="trmcloud plan"
        ) from None
    if now > plan.expires_at:
        hours = (now - plan.expires_at) / 3600
        raise UsageError(
            f"plan {plan_id} expired {hours:,.1f} h ago: its prices are no longer to be trusted",
            next_step="trmcloud plan",
        )
    return plan


def _path(home: Path, plan_id: str) -> Path:
    return home / PLANS_DIR / f"{plan_id}.json"


def _forget_old(folder: Path) -> None:
    paths = list(folder.glob("p-*.json"))
    if len(paths) <= _KEPT:
        return
    paths.sort(key=lambda path: path.stat().st_mtime)
    for path in paths[: len(paths) - _KEPT]:
        path.unlink(missing_ok=True)


# From what was typed to a Plan: what ``plan``, ``launch``, ``rehearse`` and ``export`` share.

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
            new_plan_id(self._home, spec, now),
            local=machine or self.machine(),
            tokens_available=tokens_available or _tokens_in(spec, recipe),
            measured=measurements.load_probes(self._home),
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
        save_plan(self._home, plan)
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

    def _probed(self, spec: RunSpec) -> CommandProbe | None:
        """Return a probe's measurements of the same command."""
        if spec.command is None:
            return None
        from trmcloud.app.measurements import probe_of  # with what reads runs

        return probe_of(self._home, spec.command.words)

    def _source(self, spec: RunSpec, recipe: Recipe) -> DataSource | None:
        """Return the training data; None where that is still to be named, or does not exist."""
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
