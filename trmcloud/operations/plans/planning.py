"""Plans from requests: whom a launch may rent from, the plans of a home, and hardware that
is owned.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trmcloud.core.catalog.hardware import LOCAL, LocalMachine, find_gpu, parse_hardware
from trmcloud.core.catalog.offers import DAY_S
from trmcloud.core.catalog.providers import (
    TRAITS,
    brokered,
    direct,
    find_traits,
    rentable,
    require_rented,
    traits_of,
)
from trmcloud.core.errors import (
    BudgetRefused,
    ConflictError,
    DataError,
    DoesNotFit,
    NotFoundError,
    UsageError,
)
from trmcloud.core.money import ZERO, Usd, cost
from trmcloud.core.nearest import suggest_name
from trmcloud.core.planner.candidates import kill_latency_s
from trmcloud.core.planner.command_outlook import recipe_of
from trmcloud.core.planner.estimates import HORIZON_S
from trmcloud.core.planner.planning import make_plan, rented_offers
from trmcloud.core.spec.plan import (
    FITTED,
    LIVE_PRICES,
    TEST_SETTINGS,
    Candidate,
    Plan,
    PlanTooNew,
    plan_from_json,
    plan_to_json,
)
from trmcloud.core.spec.recipe import Recipe
from trmcloud.core.spec.settings import BYTE_PAIRS, CHAT, PHASES
from trmcloud.core.spec.spec import CHEAPEST, IGNORE, DataSource, RunSpec
from trmcloud.core.values import Value, replace
from trmcloud.io.files import write_atomic
from trmcloud.io.installation import update_command
from trmcloud.operations.home import make_home
from trmcloud.operations.plans import measurements
from trmcloud.operations.plans.stock import read_stock, with_stock
from trmcloud.operations.sending.data import resolve_source
from trmcloud.options import LaunchRequest, spec_of, with_goal, words_of
from trmcloud.ports.machine import ENV_TEST_SETTINGS, PlanInputs

if TYPE_CHECKING:
    from trmcloud.core.catalog.offers import Offer
    from trmcloud.core.control.balance import Funds
    from trmcloud.core.planner.command_outlook import CommandProbe

# Whom a launch may rent from: what ``--provider`` and ``--via`` mean.


def rent_from(
    hardware: str,
    named: Sequence[str],
    via: str,
    *,
    key_allowed: bool,
    enabled: Callable[[], Sequence[str]],
) -> list[str]:
    """Providers to plan for; none where none is named, as ``plan`` has it: all are compared.

    ``enabled`` gives the providers that a program of ``via`` has access to; asked only where the
    user leaves the choice to it. One that gets a key to the whole account is among those only where
    that may lie on its pods.

    Raises:
        UsageError: a provider that nothing is rented from, or that does not go with ``via``.
        DoesNotFit: SkyPilot has access to no cloud.
    """
    titles = {TRAITS[name].route.via.lower(): TRAITS[name].route.via for name in brokered()}
    if via and via not in titles:
        words = " and ".join(titles)
        raise UsageError(f"--via {via}: only {words} is known", next_step=f"--via {words}")
    if hardware == LOCAL:
        if via or named:
            raise UsageError("this machine is not rented: leave out --provider and --via")
        return []
    for name in named:
        if find_traits(name) is None or name not in rentable():
            rows = (TRAITS[n] for n in rentable())
            own = [t.name for t in rows if not (t.prices.listed_as or t.route.instead)]
            raise UsageError(
                f"--provider: nothing can be rented from {name!r:.40}",
                next_step=suggest_name(name, own),
            )
    if not via:
        for name in named:
            require_rented(name)
        return list(named)
    if named:
        through = [_through(via, name) for name in named]
        for name in through:
            require_rented(name)
            if not traits_of(name).route.via:
                what = f"{titles[via]} cannot rent from {name}"
                raise UsageError(what, next_step="leave --via out")
        return through
    able = (name for name in enabled() if not traits_of(name).route.instead)
    found = [n for n in able if key_allowed or not traits_of(n).route.account_key_on_pod]
    if not found:
        raise DoesNotFit(f"no cloud is enabled in {titles[via]}", next_step="sky check")
    return found


def _through(via: str, provider: str) -> str:
    """Return the program's name for the same machines."""
    of_it = (t for t in map(traits_of, brokered()) if t.route.via.lower() == via)
    return next((t.name for t in of_it if t.prices.listed_as == provider), provider)


# The user's own hardware compared with rented hardware: power against rent, hours against hours.

HOST_W = 150
"""The power of a machine beside its GPUs: board, processor, disks, fan and losses."""
_CPUS_PER_GPU, _RAM_GB_PER_GPU = 8, 64.0
_MOST_PER_KWH = Usd(10)


class OwnHardware(Value):
    """The cost of a plan on one's own machine, compared with renting.

    ``rented`` is the plan's recommendation where it is the quicker one, else None; ``dearer`` is
    what it costs beyond the power, ``sooner_h`` how much earlier it is done.
    """

    hardware: str
    watts: int
    per_kwh: Usd
    candidate: Candidate
    rented: Candidate | None = None

    @property
    def per_hour(self) -> Usd:
        """Of power."""
        return self.candidate.rate

    @property
    def dearer(self) -> Usd:
        assert self.rented is not None
        return self.rented.cost_p50 - self.candidate.cost_p50

    @property
    def sooner_h(self) -> float:
        assert self.rented is not None
        return self.candidate.hours.p50 - self.rented.hours.p50

    @property
    def worth_from(self) -> Usd:
        """The value of an hour from which renting is the better: 0 where it is the cheaper, too."""
        return Usd.from_micros(max(0, round(self.dearer.micros / self.sooner_h)))

    @property
    def rent_per_own_hour(self) -> Usd:
        """The rent for the training that an hour on one's own machine does."""
        assert self.rented is not None
        return Usd.from_micros(round(self.rented.cost_p50.micros / self.candidate.hours.p50))


def own_hardware(
    planner: Planner, spec: RunSpec, plan: Plan, hardware: str, per_kwh: Usd | None
) -> OwnHardware:
    """``plan``'s training on ``hardware`` of one's own (``RTX3090``, ``2xRTX4090``) at ``per_kwh``.

    Its GPUs draw their board power, the machine ``HOST_W`` beside that.

    Raises:
        UsageError: hardware that cannot be one machine, or no sane price of power.
        DoesNotFit: it has too little memory.
    """
    if per_kwh is None:
        raise UsageError("--own needs a price of electricity", next_step="--kwh 0.30 (USD)")
    if not Usd(0) <= per_kwh <= _MOST_PER_KWH:
        raise UsageError(
            f"--kwh {per_kwh} is not a price of a kilowatt-hour", next_step="--kwh 0.30 (USD)"
        )
    text = hardware if hardware[:1].isdigit() and "x" in hardware.lower() else f"1x{hardware}"
    request = parse_hardware(text)
    if request.nodes > 1:
        raise UsageError(f"--own {hardware}: give one machine", next_step="--own 2xRTX4090")
    gpu, count = find_gpu(request.skus[0]), request.count
    watts = count * gpu.tdp_w + HOST_W
    machine = LocalMachine(
        name=request.text,
        cpus=count * _CPUS_PER_GPU,
        memory_gb=count * _RAM_GB_PER_GPU,
        gpu_sku=gpu.sku,
        gpus=count,
        gpu_memory_gb=gpu.memory_gb,
        peak_flops_per_process=gpu.peak_flops("bfloat16"),
    )
    rate = Usd.from_micros(round(per_kwh.micros * watts / 1000))
    wish = replace(
        spec, hardware=LOCAL, processes=count, rate=rate, budget=None, providers=(), regions=(),
        gpus=0, bucket="", bucket_relayed=False, volume=False, fill=False, deadline_at=None,
    )  # fmt: skip
    try:
        made = planner.plan(wish, machine=machine).candidates[0]
    except DoesNotFit as error:
        told = str(error).replace(f" on {LOCAL}", f" on your {request.text}", 1)
        raise DoesNotFit(told, next_step="leave out --own to see what can be rented") from None
    best = plan.recommended
    quicker = best if best is not None and best.hours.p50 < made.hours.p50 and best.rate else None
    return OwnHardware(request.text, watts, per_kwh, made, quicker)


# Saved plans: ``<home>/plans/p-7f3a.json``, written whole or not at all.

PLANS_DIR = "plans"
FOR_GOOD = "kept"
"""The folder beside them of those that are never deleted."""
_ID = re.compile(r"p-[0-9a-f]{4,8}")
_LATEST = 20


def is_plan_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


def new_plan_id(home: Path, spec: RunSpec, now: float, principal: str = "") -> str:
    """An id that no saved plan of the principal's bears: ``p-`` and four to eight hex digits."""
    digest = hashlib.sha256(f"{now!r} {json.dumps(spec.to_json())}".encode()).hexdigest()
    for length in range(4, 9):
        found = (_path(home, f"p-{digest[:length]}", principal, w) for w in ("", FOR_GOOD))
        if not any(path.exists() for path in found):
            break
    return f"p-{digest[:length]}"


def save_plan(home: Path, plan: Plan, principal: str = "", *, for_good: bool = False) -> Path:
    """Write ``plan`` with the candidates that a launch of it may take, apart from the owner's where
    it is a principal's: who may launch a plan is who made it. Of those that are not saved
    ``for_good``, the latest twenty stay.

    Raises:
        ConflictError: the folder cannot be written.
    """
    path = _path(home, plan.id, principal, FOR_GOOD if for_good else "")
    needed = {*plan.launchable, plan.recommended_id or plan.candidates[0].id}
    small = replace(plan, candidates=tuple(c for c in plan.candidates if c.id in needed))
    try:
        make_home(home)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps(plan_to_json(small)))
        if not for_good:
            _forget_old(path.parent)
    except OSError as error:
        raise ConflictError(
            f"the plan cannot be saved: {error.strerror or error}",
            where=str(path.parent),
            next_step="set TRMCLOUD_HOME to a folder that you own, with free space",
        ) from None
    return path


def load_plan(home: Path, plan_id: str, now: float, principal: str = "") -> Plan:
    """The saved plan ``plan_id`` of the principal; empty: of the ledger's owner.

    Raises:
        UsageError: not a plan's id, damaged, or expired at ``now`` (epoch s).
        NotFoundError: no such plan.
    """
    if not is_plan_id(plan_id):
        raise UsageError(f"{plan_id!r} is not the id of a plan", next_step="ids look like p-7f3a")
    path = _path(home, plan_id, principal)
    if not path.exists():
        path = _path(home, plan_id, principal, FOR_GOOD)
    try:
        plan = plan_from_json(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise NotFoundError(f"no plan {plan_id}", next_step="make one: trmcloud plan") from None
    except PlanTooNew:
        raise UsageError(
            f"plan {plan_id} was written by a newer version of trmcloud",
            where=str(path),
            next_step=f"{update_command()}, or make a new plan: trmcloud plan",
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is damaged"
        raise UsageError(
            f"plan {plan_id} cannot be read: {why}", where=str(path), next_step="trmcloud plan"
        ) from None
    if now > plan.expires_at:
        hours = (now - plan.expires_at) / 3600
        raise UsageError(
            f"plan {plan_id} expired {hours:,.1f} h ago: its prices may have changed",
            next_step="trmcloud plan",
        )
    return plan


def _path(home: Path, plan_id: str, principal: str, within: str = "") -> Path:
    folder = home / PLANS_DIR / f"of-{principal}" if principal else home / PLANS_DIR
    return folder / within / f"{plan_id}.json"


def _forget_old(folder: Path) -> None:
    paths = list(folder.glob("p-*.json"))
    if len(paths) <= _LATEST:
        return
    paths.sort(key=lambda path: path.stat().st_mtime)
    for path in paths[: len(paths) - _LATEST]:
        path.unlink(missing_ok=True)


# From what was typed to a Plan: what ``plan``, ``launch``, ``rehearse`` and ``export`` share.

BYTES_PER_TOKEN = {**dict.fromkeys(BYTE_PAIRS, 4.2), "char": 1.0}
"""English text per token: about 4.2 bytes at a vocabulary of 65,536."""


FundsSeen = tuple["Funds | None", str]
"""What is free of an account's balance at a provider, and why that is not known; both are empty
where there is no account there, or it states no balance."""
FundsReader = Callable[[str], FundsSeen]


def no_funds(provider: str) -> FundsSeen:
    """Read no balance."""
    return None, ""


OTHERS = ("speedrun", "gpt350m", "shakespeare", "d24", "bd3lm", "hdp")
"""Recipes that a plan names beside its own, those whose outcome is known first."""
OTHERS_SHOWN = 3
NOT_KNOWN = "not known"


class Bought(NamedTuple):
    """A recipe that money would buy."""

    recipe: str
    candidate: Candidate
    reached: str
    """The quality that it reached elsewhere, in a few words."""


_MOST_FITS = 3
"""A shorter budget may recommend another provider, whose balance is read then."""


class Planner:
    """Makes one command's plans, from recipes, prices and a machine that are looked at once.

    Where one with live prices is among those that may be rented from, and there is a key, they are
    asked for; where they do not come within seconds the dated ones serve, and each plan says so
    among its limits. ``clock`` gives epoch seconds; ``principal`` is whose plans they are.
    """

    def __init__(
        self,
        inputs: PlanInputs,
        home: Path,
        clock: Callable[[], float],
        funds: FundsReader = no_funds,
        principal: str = "",
    ) -> None:
        self.inputs, self._home, self._clock, self._funds = inputs, home, clock, funds
        self._principal = principal
        self._recipes: dict[str, Recipe] = {}
        self._machine: LocalMachine | None = None
        self._live: dict[tuple[str, ...], tuple[Sequence[Offer], str]] = {}
        self._offers: dict[tuple[str, ...], list[Offer]] = {}

    @property
    def home(self) -> Path:
        """The folder of the plans, probes and records that it reads."""
        return self._home

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
        goal = self.inputs.goal(request.goal) if request.goal else None
        if goal is not None:
            request = with_goal(request, goal)
        named = request.provider if providers is None else providers
        can_upload = not request.bucket or self.inputs.pods_can_upload()
        spec = spec_of(request, named, self._clock(), pods_can_upload=can_upload)
        if goal is None:
            return spec
        objective = spec.objective if "objective" in request.typed else CHEAPEST
        return replace(spec, goal=goal, phases=goal.phases or spec.phases, objective=objective)

    def spec_to_launch(self, request: LaunchRequest) -> RunSpec:
        """Likewise, with the providers that ``rent_from`` gives: what ``plan`` compares, a launch
        compares.

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
            PaymentRequired: the budget is to fit a balance of which nothing is free, or which is
                not known or limits nothing.
        """
        plan = self._plan(spec, tokens_available, machine)
        for _ in range(_MOST_FITS if spec.fit_balance else 0):
            left = self._lacking(plan)
            if left is None:
                break
            asked = "no budget" if spec.budget is None else f"a budget of {spec.budget}"
            plan = self._plan(replace(plan.spec, budget=left), tokens_available, machine)
            told = f"{left}, the free part of the provider's balance, instead of {asked}"
            plan = replace(plan, limits={**plan.limits, FITTED: told})
        return plan

    def funds(self, plan: Plan) -> FundsSeen:
        """(what is free of the balance that the plan would be paid from, why that is not known);
        both empty where none is told, or it is not to be read."""
        chosen = plan.recommended
        if chosen is None or chosen.provider == LOCAL or plan.spec.balance == IGNORE:
            return None, ""
        return self._funds(chosen.provider)

    def _lacking(self, plan: Plan) -> Usd | None:
        """Return the budget that fits a balance which does not cover the plan; None where it
        does."""
        from trmcloud.core.control.balance import require_funds, require_known, worst_at

        told, why = self.funds(plan)
        chosen = plan.recommended
        if chosen is None or chosen.provider == LOCAL:
            return None
        funds = require_known(told, chosen.provider, why)
        worst = worst_at(plan, chosen.provider)
        if funds.free <= ZERO:
            require_funds(funds, worst)
        return funds.fitting if funds.missing(worst) else None

    def _plan(
        self, spec: RunSpec, tokens_available: int | None, machine: LocalMachine | None
    ) -> Plan:
        now = self._clock()
        recipe = recipe_of(spec.command) if spec.command else self.recipe(spec.recipe)
        offers, told = self._known_offers(spec, now)
        plan = make_plan(
            spec,
            recipe,
            offers,
            now,
            new_plan_id(self._home, spec, now, self._principal),
            local=machine or self.machine(),
            tokens_available=tokens_available or _tokens_in(spec, recipe),
            measured=measurements.load_probes(self._home),
            probed=self._probed(spec),
            source=self._source(spec, recipe),
        )
        plan = with_stock(plan, read_stock(self._home))
        if told:
            plan = replace(plan, limits={**plan.limits, LIVE_PRICES: told})
        if recipe.test_settings:
            put = ", ".join(f"{key} = {value}" for key, value in recipe.test_settings.items())
            told = f"changed from the recipe by {ENV_TEST_SETTINGS}: {put}"
            plan = replace(plan, limits={**plan.limits, TEST_SETTINGS: told})
        return plan

    def save(self, plan: Plan, *, for_good: bool = False) -> Plan:
        """Keep it under the user's home, ``for_good`` or until twenty later ones are saved.

        Raises:
            ConflictError: the folder cannot be written.
        """
        save_plan(self._home, plan, self._principal, for_good=for_good)
        return plan

    def others(self, spec: RunSpec, names: Sequence[str], *, most: int = 0) -> list[Bought]:
        """What other recipes would take within the limits of ``spec``: the recommendations of their
        own plans, in the order of ``names``, ``most`` of them (0: all).
        """
        now, found = self._clock(), []
        offers = self._known_offers(spec, now)[0]
        for name in names:
            wish = replace(spec, recipe=name, phases=PHASES, overrides=(), data="", chat_data="")
            recipe = self.recipe(name)
            try:
                plan = make_plan(
                    wish, recipe, offers, now, "",
                    local=self.machine(), source=self._source(wish, recipe),
                )  # fmt: skip
            except (UsageError, NotFoundError, DoesNotFit, BudgetRefused):
                continue
            chosen = plan.recommended
            if chosen is not None and chosen.within_budget:
                is_whole = not (spec.fills or spec.steps or spec.hours or spec.tokens)
                reached = chosen.phases[0].settings.reached.get(name) if is_whole else None
                found.append(Bought(name, chosen, reached or NOT_KNOWN))
            if len(found) == most > 0:
                break
        return found

    def next_wish(self, request: LaunchRequest, spec: RunSpec) -> str:
        """The command nearest to ``request``, which has no plan, that has one: with more money and
        time, else on other hardware; empty where there is none."""
        typed = [name for name in request.typed if name not in ("budget", "deadline")]
        free = replace(
            spec, budget=None, objective=CHEAPEST, fill=False, fit_balance=False,
            deadline_at=self._clock() + _YEAR_S,
        )  # fmt: skip
        for wish in (free, replace(free, hardware="", gpus=0, processes=0)):
            if not wish.hardware:
                typed = [name for name in typed if name not in ("hardware", "gpus", "processes")]
            try:
                best = self.plan(wish).recommended
            except (UsageError, NotFoundError, DoesNotFit, BudgetRefused):
                continue
            if best is not None and best.within_budget:
                more, names = _enough(best, spec, self._clock())
                words = words_of(
                    replace(request, **more, typed=(*typed, *names)), "plan", (*typed, *names)
                )
                return shlex.join(["trmcloud", "plan", *words])
        return ""

    def offers_for(self, spec: RunSpec) -> tuple[list[Offer], float]:
        """(the offers of other machines that ``spec`` leaves to choose from, epoch s as of now)

        Raises:
            NotFoundError: there is none. UsageError: unknown hardware, or this machine.
        """
        now = self._clock()
        return rented_offers(spec, self._known_offers(spec, now)[0], now), now

    def _known_offers(self, spec: RunSpec, now: float) -> tuple[Sequence[Offer], str]:
        """(what may be rented, what is to be said of live prices)"""
        if spec.hardware == LOCAL:
            return [], ""
        live: Sequence[Offer] = ()
        told = ""
        found = map(find_traits, spec.providers or direct()[:1])
        named = [traits for traits in found if traits is not None]
        # Those whose own list is read: not one that is not planned for.
        asks = tuple(dict.fromkeys(t.prices.listed_as or t.name for t in named if t.prices.live))
        if asks:
            if asks not in self._live:
                self._live[asks] = self.inputs.live_prices(now, asks)
            live, missed = self._live[asks]
            if missed:
                told = f"not read: {missed}; older prices are used"
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
            if offer.provider == traits.prices.listed_as and not offer.is_community
        ]
        return [*offers, *renamed], told

    def _probed(self, spec: RunSpec) -> CommandProbe | None:
        """Return a probe's measurements of the same command."""
        if spec.command is None:
            return None
        from trmcloud.operations.plans.measurements import probe_of  # with what reads runs

        return probe_of(self._home, spec.command.words)

    def _source(self, spec: RunSpec, recipe: Recipe) -> DataSource | None:
        """Return the training data; None where that is still to be named, or does not exist."""
        if spec.command is not None:
            size = _bytes_in(Path(spec.data)) if spec.data else 0
            return DataSource(spec.data, sent_bytes=size)
        first = spec.phases[0] if spec.phases[0] in recipe.phases else recipe.usual_phases[0]
        if first == CHAT:
            return None  # its conversations are brought
        named = spec.data or str(dict(spec.overrides).get("data", recipe.data_of(first)))
        if not named:
            return None
        try:
            return self.inputs.data_source(resolve_source(named))
        except DataError:
            if spec.data:
                return None  # a launch refuses it; a plan may be of text that is elsewhere
            raise


_YEAR_S = 364 * DAY_S
"""The latest deadline that an option takes."""
_ROOM = 1.03
"""Of what P90 costs and takes, what is suggested: prices and lines move a little."""


def _enough(best: Candidate, spec: RunSpec, now: float) -> tuple[dict[str, Any], list[str]]:
    """(the budget and the deadline with which ``best`` finishes, those of them to be typed)"""
    p90_s = best.hours.p90 * 3600 + best.landing_s + kill_latency_s(best.provider)
    held = best.storage.micros * max(1.0, best.hours.p90 / max(best.hours.p50, 1e-9))
    need = _ROOM * (cost(best.reserved_rate, p90_s).micros + held)
    more: dict[str, Any] = {}
    names = []
    if spec.budget is not None:
        more["budget"] = f"{max(spec.budget.micros, need) / 1e6 + 0.005:.2f}"
        names.append("budget")
    given_s = spec.deadline_at - now if spec.deadline_at is not None else HORIZON_S
    if spec.deadline_at is not None or p90_s * _ROOM > given_s:
        more["deadline"] = f"{math.ceil(max(given_s, p90_s * _ROOM) / 3600)}h"
        names.append("deadline")
    return more, names


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
