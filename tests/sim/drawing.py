"""From a seed to the scenario of a world."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Sequence

from trmcloud.core.catalog.hardware import LOCAL
from trmcloud.core.catalog.offers import DAY_S
from trmcloud.core.catalog.providers import traits_of
from trmcloud.core.control.events import GrantTerms
from trmcloud.core.money import ZERO, Usd, affordable_seconds, cost
from trmcloud.core.planner.estimates import (
    LOCAL_LANDING_MARGIN_S,
    MIN_LOCAL_LANDING_S,
    REMOTE_LANDING_MARGIN_S,
    UPLOAD_MARGIN_S,
)
from trmcloud.core.planner.memory import stored_bytes
from trmcloud.core.spec.plan import Candidate, Interval, PhasePlan, Plan
from trmcloud.core.spec.settings import PhaseRecipe
from trmcloud.core.spec.spec import KEEP, SLOW_POLICIES, STOP, THEN, WARN, RunSpec
from trmcloud.core.storage import pod_disks_price, price_per_hour, work_gb
from trmcloud.core.values import replace
from trmcloud.sim.scenario import GrantAct, Scenario, SimRun
from trmcloud.sim.world.facts import START_AT, TruePaces
from trmcloud.sim.world.provider_profiles import PROFILES
from trmcloud.sim.world.trainer import Shape

HOUR_S = 3600.0
_UPLOAD_S = 25.0
"""Of one checkpoint, at most: see ``sim.uploads``."""

OFF = (
    frozenset({"trainer"}),
    frozenset({"agent"}),
    frozenset({"watchdog"}),
    frozenset({"trainer", "controller"}),
    frozenset({"trainer", "watchdog"}),
    frozenset({"agent", "controller"}),
    frozenset({"watchdog", "controller"}),
    frozenset({"trainer", "watchdog", "controller"}),
    frozenset({"agent", "watchdog"}),
    frozenset({"agent", "watchdog", "controller"}),
)
"""Layers that are dead together; the last leaves the reaper alone."""
_OFF_SHARE = 0.15


def draw(
    seed: int,
    fault_names: tuple[str, ...],
    *,
    most_faults: int = 7,
    among: Collection[str] | None = None,
    elsewhere: bool | None = None,
    market: tuple[str, ...] = (),
) -> Scenario:
    """The scenario of ``seed``. A tenth of all seeds are healthy. ``among`` names the providers
    that can be drawn (None: all): with another one, the same seed is another world. ``elsewhere``:
    whether a run with a bucket may have candidates of a second provider, and be preempted (None:
    where ``among`` is not given, so that worlds of before are what they were). ``market``: names of
    faults of the market, some of which strike; every rented run then waits for a machine."""
    rng = random.Random(seed * 2 + 1)
    # Rented ones first, each as often as its share says.
    known = [each for each in PROFILES.values() if among is None or each.provider in among]
    there = sorted(known, key=lambda profile: profile.provider == LOCAL)
    provider = rng.choice([each.provider for each in there for _ in range(each.shares)])
    wishes = [_wish(rng, 0, provider, at_s=rng.uniform(0, 60))]
    if rng.random() < 0.3:
        wishes.append(_wish(rng, 1, provider, at_s=rng.uniform(60, 4 * HOUR_S)))
    cap = None
    if rng.random() < 0.5:
        whole = sum(wish.plan.reservation.micros for wish in wishes)
        cap = Usd.from_micros(int(whole * rng.uniform(0.7, 1.5)) + 1)
    count = 0 if rng.random() < 0.1 else rng.randint(1, most_faults)
    drawn = [name for name in fault_names if name not in _OF_A_MARKET]
    faults = tuple(rng.sample(drawn, min(count, len(drawn))))
    made = Scenario(
        seed=seed,
        providers=(provider,),
        wishes=tuple(wishes),
        account_cap=cap,
        reaper=rng.choice(("none", "laptop", "server", "server")),
        foreign=rng.random() < 0.2,
        looks_every_s=rng.choice((600.0, 3600.0, 8 * HOUR_S)),
        faults=faults,
        fault_seeds=tuple(rng.getrandbits(32) for _ in faults),
    )
    if rng.random() < _OFF_SHARE:
        made = _with_layers_off(made, rng)
    elif elsewhere if elsewhere is not None else among is None:
        others = [each.provider for each in there for _ in range(each.shares)]
        made = _with_a_second_provider(made, others, fault_names)
    made = _with_faults_of_a_market(made, fault_names)
    return _in_a_market(made, market) if market else made


_OF_A_MARKET = ("90", "91", "92", "93")
_MARKET_SHARE = 0.6


def _with_faults_of_a_market(scenario: Scenario, fault_names: tuple[str, ...]) -> Scenario:
    """Where hosts of a market may be drawn, some of their own troubles strike besides.

    Drawn apart: all else of the world is as it was without.
    """
    names = [name for name in _OF_A_MARKET if name in fault_names]
    rng = random.Random(f"market {scenario.seed}")
    stops = any(PROFILES[name].stops for name in scenario.providers)
    if not names or not stops or rng.random() >= _MARKET_SHARE:
        return scenario
    more = tuple(rng.sample(names, rng.choice((1, 1, 2))))
    seeds = tuple(rng.getrandbits(32) for _ in more)
    return replace(
        scenario,
        faults=(*scenario.faults, *more),
        fault_seeds=(*scenario.fault_seeds, *seeds),
    )


_ELSEWHERE_SHARE = 0.4
_PREEMPTED = "34"


def _with_a_second_provider(
    scenario: Scenario, providers: list[str], fault_names: tuple[str, ...]
) -> Scenario:
    """Runs with a bucket may continue at a second provider; mostly their machine is preempted.

    Drawn apart: all else of the world is as it was without.
    """
    rng = random.Random(f"elsewhere {scenario.seed}")
    [first] = scenario.providers
    others = [name for name in providers if name not in (first, LOCAL)]
    kept = any(wish.plan.spec.bucket for wish in scenario.wishes)
    if first == LOCAL or not others or not kept or rng.random() >= _ELSEWHERE_SHARE:
        return scenario
    second = rng.choice(others)
    wishes = tuple(
        replace(wish, plan=_with_candidate_at(rng, wish.plan, second))
        if wish.plan.spec.bucket
        else wish
        for wish in scenario.wishes
    )
    made = replace(scenario, providers=(first, second), wishes=wishes)
    strikes = _PREEMPTED in fault_names and _PREEMPTED not in made.faults
    if not strikes or rng.random() >= 0.8:
        return made
    return replace(
        made,
        faults=(*made.faults, _PREEMPTED),
        fault_seeds=(*made.fault_seeds, rng.getrandbits(32)),
    )


def _in_a_market(scenario: Scenario, names: tuple[str, ...]) -> Scenario:
    """Its rented runs wait for machines, of which there are few. Drawn apart: all else of the world
    is as it was without."""
    rng = random.Random(f"market {scenario.seed}")
    wishes = tuple(replace(w, plan=_that_waits(rng, w.plan)) for w in scenario.wishes)
    strikes = tuple(rng.sample(names, rng.randint(1, len(names))))
    return _with_wishes(rng, scenario, wishes, strikes, lambda plan: plan.reservation)


def _with_wishes(
    rng: random.Random,
    scenario: Scenario,
    wishes: tuple[SimRun, ...],
    strikes: tuple[str, ...],
    money: Callable[[Plan], Usd],
) -> Scenario:
    """The scenario with other wishes and more faults; the account's cap grows as their ``money``
    does."""
    seeds = tuple(rng.getrandbits(32) for _ in strikes)
    cap = scenario.account_cap
    if cap is not None:
        held = [sum(money(w.plan).micros for w in each) for each in (scenario.wishes, wishes)]
        cap = Usd.from_micros(int(cap.micros * held[1] / max(1, held[0])) + 1)
    return replace(
        scenario,
        wishes=wishes,
        account_cap=cap,
        faults=(*scenario.faults, *strikes),
        fault_seeds=(*scenario.fault_seeds, *seeds),
    )


def _that_waits(rng: random.Random, plan: Plan) -> Plan:
    """``plan`` with a time to wait for, and the most that an hour may cost, which is reserved."""
    wait_s, above = 600.0 * 60 ** rng.random(), rng.uniform(1.0, 1.6)
    if plan.candidates[0].provider == LOCAL:
        return plan
    most = Usd.from_micros(int(max(c.rate.micros for c in plan.candidates) * above))
    candidates = tuple(_at_most(candidate, most) for candidate in plan.candidates)
    reservation = max(c.worst_case for c in candidates)
    return replace(
        plan,
        spec=replace(plan.spec, wait_s=wait_s, max_rate=most),
        candidates=candidates,
        reservation=reservation,
        cap=max(plan.cap or reservation, reservation),
    )


def _at_most(candidate: Candidate, most: Usd) -> Candidate:
    billed_s = candidate.hard_stop_s + traits_of(candidate.provider).kill_latency_s
    more = cost(most, billed_s) - cost(candidate.rate, billed_s)
    return replace(candidate, most_rate=most, worst_case=candidate.worst_case + more)


def _with_candidate_at(rng: random.Random, plan: Plan, provider: str) -> Plan:
    """``plan`` with a candidate of another provider, at that one's disks and another rate."""
    first = plan.candidates[0]
    rate = Usd.from_micros(int(first.rate.micros * rng.uniform(0.6, 1.5)))
    disk_rate = pod_disks_price(provider, first.work_gb, 1, on_volume=False)
    planned_s = min(first.hours.p50 * HOUR_S, first.hard_stop_s)
    billed_s = first.hard_stop_s + traits_of(provider).kill_latency_s
    storage = first.storage - cost(first.disk_rate, planned_s) + cost(disk_rate, planned_s)
    worst = cost(rate, billed_s) + storage + cost(disk_rate, billed_s - planned_s)
    made = replace(
        first,
        id="c2",
        provider=provider,
        rate=rate,
        planned_rate=rate,
        most_rate=rate,
        disk_rate=disk_rate,
        storage=storage,
        worst_case=worst,
    )
    reservation = max(plan.reservation, worst)
    return replace(
        plan,
        spec=replace(plan.spec, providers=(first.provider, provider)),
        candidates=(*plan.candidates, made),
        launchable=rng.choice((("c0", "c2"), ("c0", "c1", "c2"), ("c2", "c0"))),
        reservation=reservation,
        cap=max(plan.cap or reservation, reservation),
    )


def _with_layers_off(scenario: Scenario, rng: random.Random) -> Scenario:
    """Layers beneath must then show that they work alone; few faults strike besides.

    Where no controller is ever there, the user types nothing either, until everything is well.
    """
    off = rng.choice(OFF)
    count = min(len(scenario.faults), rng.choice((0, 1, 1, 2)))
    made = replace(
        scenario, off=off, faults=scenario.faults[:count], fault_seeds=scenario.fault_seeds[:count]
    )
    if "controller" not in off:
        return made
    alone = {"agent", "watchdog"} <= off
    wishes = tuple(
        replace(w, detached=True, stop_after_s=0.0, resume_after_s=0.0, fetch_after_s=0.0)
        for w in scenario.wishes
    )
    looks_every_s, reaper = 1000 * HOUR_S, "server" if alone else "none"
    return replace(made, wishes=wishes, looks_every_s=looks_every_s, reaper=reaper)


def with_balance(scenario: Scenario) -> Scenario:
    """The same scenario with a balance that covers what is launched, and that other machines of the
    account use up meanwhile; mostly its runs land before it ends. Unchanged where the provider is
    paid later. Drawn apart."""
    rng = random.Random(f"balance {scenario.seed}")
    if not any(PROFILES[name].prepaid for name in scenario.providers):
        return scenario
    policy = rng.choice((STOP, STOP, STOP, WARN))
    wishes = tuple(
        replace(wish, plan=replace(wish.plan, spec=replace(wish.plan.spec, balance=policy)))
        for wish in scenario.wishes
    )
    worst = sum(wish.plan.reservation.micros for wish in wishes)
    paid_in = Usd.from_micros(int(worst * rng.uniform(1.2, 3.0)) + 1)
    return replace(scenario, wishes=wishes, paid_in=paid_in, foreign=True)


_PRINCIPALS = ("agent", "ci")


def with_grants(scenario: Scenario) -> Scenario:
    """The same scenario with more runs, most of them launched by principals whose grants are given,
    raised, asked for, revoked and given again while they run, from two machines. Drawn apart."""
    rng = random.Random(f"grants {scenario.seed}")
    provider = scenario.wishes[0].plan.candidates[0].provider
    first_at = scenario.wishes[0].at_s
    wishes = list(scenario.wishes)
    for number in range(len(wishes), rng.randint(2, 5)):
        # Some at the same moment: both look before either has reserved.
        at_s = first_at + rng.choice((0.0, 5.0, rng.uniform(0, 2 * HOUR_S), rng.uniform(0, DAY_S)))
        wishes.append(_wish(rng, number, provider, at_s=at_s))
    names = _PRINCIPALS[: rng.choice((1, 2, 2))]
    wishes = [
        replace(
            wish,
            principal=rng.choice((*names, *names, *names, "")),
            resumed_by=rng.choice((*names, *names, "")),
            elsewhere=rng.random() < 0.4,
        )
        for wish in wishes
    ]
    acts = [act for name in names for act in _acts(rng, name, wishes, provider)]
    return replace(scenario, wishes=tuple(wishes), grants=tuple(acts))


def _acts(
    rng: random.Random, name: str, wishes: Sequence[SimRun], provider: str
) -> Iterator[GrantAct]:
    """The life of one principal's grants."""
    needs = [wish.plan.reservation.micros for wish in wishes if wish.principal == name] or [10**6]
    spans_s = 1.2 * max(w.at_s + w.plan.candidates[0].hard_stop_s for w in wishes)

    def some(micros: int, low: float, high: float) -> Usd:
        return Usd.from_micros(max(1, int(micros * rng.uniform(low, high))))

    def drawn() -> GrantTerms:
        late = START_AT + rng.uniform(0.1, 1.0) * spans_s
        return GrantTerms(
            total=some(sum(needs), 0.4, 1.4),
            per_run=some(max(needs), 0.8, 2.0) if rng.random() < 0.4 else None,
            per_day=some(sum(needs), 0.3, 1.0) if rng.random() < 0.5 else None,
            runs_at_once=rng.choice((0, 1, 1, 2)),
            providers=(rng.choice((provider, provider, "nobody")),) if rng.random() < 0.2 else (),
            expires_at=late if rng.random() < 0.2 else None,
            idle_s=rng.choice((0.0, 1800.0, 7200.0)),
        )

    terms, at_s = drawn(), rng.choice((0.0, 0.0, 0.0, rng.uniform(0, HOUR_S)))
    yield GrantAct(at_s, "give", name, terms)
    if rng.random() < 0.4:
        asked = GrantTerms(some(sum(needs), 0.1, 0.6), runs_at_once=rng.choice((0, 2, 3)))
        yield GrantAct(at_s + rng.uniform(0, spans_s), "approve", name, asked)
    if rng.random() < 0.3:
        more = replace(terms, total=terms.total + some(sum(needs), 0.1, 0.8))
        yield GrantAct(at_s + rng.uniform(0, spans_s), "raise", name, more)
    if rng.random() < 0.4:
        over_s = at_s + rng.uniform(60.0, spans_s)
        yield GrantAct(over_s, rng.choice(("revoke", "revoke", "revoke_now")), name)
        if rng.random() < 0.6:
            yield GrantAct(
                over_s + rng.choice((1.0, rng.uniform(0, HOUR_S))), "give", name, drawn()
            )


_FIRST_FACTORS = (0.6, 0.9, 1.0, 1.0, 1.3, 1.6, 2.5, 4.0)
_LATER_FACTORS = (0.8, 1.0, 1.0, 1.5)
_AT_FIRST = (1.0, 1.0, 1.0, 10.0, 0.1)
_LIES = (1.0, 1.0, 1.0, 1.0, 0.002, 0.5, 3.0, 1000.0)


def with_paces(scenario: Scenario) -> Scenario:
    """The same scenario with machines that are faster or slower than planned and time their steps,
    of which some lie, and with each of ``--if-slow``. Drawn apart: all else of the world is as it
    was without."""
    rng = random.Random(f"paces {scenario.seed}")
    wishes, paces = [], {}
    for wish in scenario.wishes:
        policy = rng.choice(SLOW_POLICIES)
        lie = rng.choice(_LIES)
        factors = (rng.choice(_FIRST_FACTORS), *(rng.choice(_LATER_FACTORS) for _ in range(3)))
        at_first, steps = rng.choice(_AT_FIRST), rng.choice((20, 20, 30))
        paces[wish.run_id] = TruePaces(factors, at_first, steps, lie)
        spec = replace(wish.plan.spec, if_slow=policy, hardware="8xH100")
        wishes.append(replace(wish, plan=replace(wish.plan, spec=spec)))
    made = _with_wishes(rng, scenario, tuple(wishes), (), lambda plan: plan.cap or ZERO)
    return replace(made, paces=paces)


_TIGHT = (0.4, 0.6, 0.8, 1.0)
"""Tight stops, as shares of the planned P90: that a machine of the planned pace needs no more is
not so in all of them."""


def with_extensions(scenario: Scenario) -> Scenario:
    """The same scenario with machines of any pace, and with stops that are tight and are moved
    where the work needs it; the account's cap mostly has the money for that. Drawn apart."""
    paced = with_paces(scenario)
    rng = random.Random(f"extensions {scenario.seed}")
    share, wishes = rng.choice(_TIGHT), []
    for wish in paced.wishes:
        plan = wish.plan if wish.detached else _tight(wish.plan, share)
        wishes.append(replace(wish, plan=plan))
    cap = paced.account_cap
    if cap is not None:
        whole = sum((wish.plan.cap or ZERO).micros for wish in wishes)
        least = max(wish.plan.reservation.micros for wish in wishes)
        cap = Usd.from_micros(max(least, int(whole * rng.uniform(0.5, 1.5))) + 1)
    return replace(paced, wishes=tuple(wishes), account_cap=cap)


def _tight(plan: Plan, share: float) -> Plan:
    """``plan`` with a hard stop at ``share`` of its own, or what is left to land and a quarter of
    an hour; that one is the limit to which it is moved."""
    if plan.spec.patience or plan.candidates[0].provider == LOCAL:
        return plan
    candidates = []
    for made in plan.candidates:
        least_s = max(made.startup_s.p90 + 1200.0, made.hours.p50 * HOUR_S) + made.landing_s
        hard_s = max(least_s, share * made.hard_stop_s)
        if hard_s >= made.hard_stop_s:
            return plan
        less = cost(
            made.reserved_rate + made.disk_rate + made.volume_rate, made.hard_stop_s - hard_s
        )
        candidates.append(
            replace(
                made,
                soft_stop_s=hard_s - made.landing_s,
                hard_stop_s=hard_s,
                worst_case=made.worst_case - less + Usd.from_micros(4),
                limit_s=made.hard_stop_s,
                limit=made.worst_case,
            )
        )
    reservation = max(c.worst_case for c in candidates)
    return replace(plan, candidates=tuple(candidates), reservation=reservation)


def with_time_to_spare(scenario: Scenario) -> Scenario:
    """The same scenario with plans whose money lasts for ten times their work: then even the
    slowest board does it in time."""
    wishes = tuple(replace(wish, plan=_with_time(wish.plan)) for wish in scenario.wishes)
    return replace(scenario, wishes=wishes, account_cap=None)


def _with_time(plan: Plan) -> Plan:
    candidates = []
    for made in plan.candidates:
        more_s = 9.0 * made.hard_stop_s
        candidates.append(
            replace(
                made,
                soft_stop_s=made.soft_stop_s + more_s,
                hard_stop_s=made.hard_stop_s + more_s,
                worst_case=made.worst_case
                + cost(made.reserved_rate + made.disk_rate + made.volume_rate, more_s),
                within_budget=True,
            )
        )
    reservation = max(c.worst_case for c in candidates)
    cap = max(plan.cap or reservation, reservation)
    return replace(plan, candidates=tuple(candidates), reservation=reservation, cap=cap)


def _wish(rng: random.Random, number: int, provider: str, *, at_s: float) -> SimRun:
    hours = 0.1 * 400 ** rng.random()
    rate = Usd.from_micros(int(500_000 * 100 ** rng.random()))
    names = rng.choice((("fast",), ("fast", "extreme"), ("fast", "extreme")))
    expected, shapes, phases = hours * HOUR_S, {}, []
    speed = rng.uniform(0.85, 1.2)
    shares = [1.0] if len(names) == 1 else [0.35, 0.65]
    for name, share in zip(names, shares, strict=True):
        seconds = expected * share
        step_s = min(0.2 * 50 ** rng.random(), seconds / 60)
        start_s, compile_s = rng.uniform(5, 30), rng.uniform(20, 200)
        eval_s, save_s = rng.uniform(2, 20), rng.uniform(1, 30)
        steps = max(20, int(seconds / step_s))
        every = max(5, steps // rng.randint(4, 40))
        shape = Shape(
            name, steps, step_s * speed, every, eval_s, every, save_s, start_s, compile_s,
            gate_passes=rng.random() < 0.93,
        )  # fmt: skip
        # Apart from the other draws: a world of before has the same pods and faults as it had.
        worth = random.Random(f"worth {steps} {rate.micros}")
        stops = worth.random() < 0.3
        if stops and worth.random() < 0.5:
            shape = replace(shape, turns_at=worth.uniform(0.1, 0.3))
        shapes[name] = shape
        whole = (shape.seconds_to(steps) / speed) + start_s + compile_s
        spread = Interval(whole * 0.9, whole, whole * 1.25)
        # Apart, too: a machine that has room for larger micro-batches, see ``memory_share``.
        roomy = random.Random(f"room {steps} {rate.micros}").random() < 0.3
        settings = PhaseRecipe.from_json(
            {
                **{"recipe": "trm", "family": "trm", "phase": name, "steps": steps},
                **{"eval_every": every, "save_every": every, "accumulation": 6 if roomy else 1},
            }
        )
        phases.append(
            PhasePlan(
                name=name,
                settings=settings,
                tokens=steps * 1000,
                flops=1e15 * share,
                step_s=Interval(step_s * 0.9, step_s, step_s * 1.2),
                seconds=spread,
                parts_s={"compile": compile_s, "training": steps * step_s},
            )
        )
    binds, keeps = rng.random() < 0.5, rng.random()
    volume, bucket = keeps < 0.4, keeps > 0.65
    slowest_s = max(shape.eval_s + shape.save_s for shape in shapes.values())
    plan = make_plan(
        rng, provider, rate, tuple(phases), slowest_s,
        binds=binds, volume=volume, bucket=bucket,
    )  # fmt: skip
    if stops:
        plan = replace(plan, spec=replace(plan.spec, patience=worth.choice((1, 2, 4))))
    return SimRun(
        run_id=f"r-{number}{rng.getrandbits(20):05x}",
        at_s=at_s,
        plan=plan,
        shapes=shapes,
        project=rng.choice(("default", "other")),
        detached=rng.random() < 0.4,
        stop_after_s=expected * rng.random() if rng.random() < 0.15 else 0.0,
        resume_after_s=rng.uniform(10, 4 * HOUR_S) if rng.random() < 0.4 else 0.0,
        fetch_after_s=expected * rng.uniform(0.3, 1.5) if rng.random() < 0.6 else 0.0,
    )


def make_plan(
    rng: random.Random,
    provider: str,
    rate: Usd,
    phases: tuple[PhasePlan, ...],
    slowest_s: float,
    *,
    binds: bool,
    volume: bool,
    bucket: bool = False,
) -> Plan:
    """A plan as ``planning`` makes them: stops, landing reserve, storage and worst case.

    ``slowest_s``: what the longest evaluation and save take together.
    """
    traits = traits_of(provider)
    startup = Interval(20.0, 120.0, 400.0) if provider != "local" else Interval(0.5, 1.0, 3.0)
    p50 = sum(p.seconds.p50 for p in phases) + startup.p50
    p90 = sum(p.seconds.p90 for p in phases) + startup.p90
    landing_s = max(MIN_LOCAL_LANDING_S, 1.5 * slowest_s + LOCAL_LANDING_MARGIN_S)
    if provider != "local":
        landing_s = 2 * slowest_s + REMOTE_LANDING_MARGIN_S
    if bucket:
        landing_s += UPLOAD_MARGIN_S + 2 * _UPLOAD_S
    storage = Usd.from_micros(rng.randint(0, 200_000))
    # Drawn apart: a world of before has the same pods and faults as it had.
    apart = random.Random(f"{storage.micros} {rate.micros}")
    volume_rate, volume_days, then = ZERO, 7.0, KEEP
    data_bytes = apart.randint(2_000, 60_000) * 10_000_000
    room_gb = work_gb(stored_bytes(phase.settings for phase in phases), data_bytes)
    has_volume = volume and provider != "local"
    disk_rate = pod_disks_price(provider, room_gb, 1, on_volume=has_volume)
    if has_volume:
        volume_rate = price_per_hour(provider, "kept", room_gb)
        volume_days, then = apart.choice((0.0, 0.02, 0.2, 7.0)), apart.choice(THEN)
    hard_s = p90 + landing_s
    if binds:
        hard_s = max(startup.p90 + 600.0, hard_s * rng.uniform(0.3, 0.9)) + landing_s
    after_s = volume_days * DAY_S
    planned_s, billed_s = min(p50, hard_s), hard_s + traits.kill_latency_s
    storage += cost(volume_rate, planned_s + after_s) + cost(disk_rate, planned_s)
    worst = cost(rate, billed_s) + storage
    worst += cost(volume_rate, billed_s - planned_s) + cost(disk_rate, billed_s - planned_s)
    cap = worst if binds else Usd.from_micros(int(worst.micros * rng.uniform(1.0, 1.6)) + 1)
    assert affordable_seconds(worst, rate) >= hard_s
    made = [
        Candidate(
            id=f"c{index}",
            hardware="8xSIM",
            sku="H100-SXM",
            gpus=8,
            provider=provider,
            region="",
            rate=rate,
            spot=False,
            priced_at=0.0,
            source="sim",
            startup_s=startup,
            phases=phases,
            hours=Interval(p50 * 0.9 / HOUR_S, p50 / HOUR_S, p90 / HOUR_S),
            cost_p10=cost(rate, p50 * 0.9),
            cost_p50=cost(rate, p50),
            cost_p90=cost(rate, p90),
            memory_need_gb=1.0,
            memory_gb=80.0,
            fits_memory=True,
            within_budget=not binds,
            soft_stop_s=hard_s - landing_s,
            hard_stop_s=hard_s,
            landing_s=landing_s,
            worst_case=worst,
            reasons=(),
            planned_rate=rate,
            most_rate=rate,
            storage=storage,
            volume_rate=volume_rate,
            volume_gb=room_gb if has_volume else 0,
            work_gb=room_gb,
            disk_rate=disk_rate,
        )
        for index in range(2)
    ]
    names = tuple(p.name for p in phases)
    spec = RunSpec(recipe="trm", phases=names, hardware="8xSIM", volume=volume)
    spec = replace(spec, volume_days=volume_days, volume_then=then)
    if bucket:
        spec = replace(spec, bucket="s3://bucket/sim")
    return Plan(
        id="p-51a0",
        created_at=0.0,
        expires_at=4e9,
        spec=spec,
        cap=cap,
        candidates=tuple(made),
        launchable=tuple(c.id for c in made),
        recommended_id="c0",
        reservation=worst,
        survives="a network volume" if volume else "what is pulled",
        limits={},
        offers_total=2,
    )
