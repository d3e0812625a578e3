"""What is known before a sweep's first trial, for plans as they are made."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from trmcloud.core.control.run_state import RunState
from trmcloud.core.errors import UsageError
from trmcloud.core.money import Usd
from trmcloud.core.planner.memory import USABLE_SHARE, predict_memory
from trmcloud.core.spec.plan import Plan
from trmcloud.core.spec.spec import RunSpec
from trmcloud.core.spec.trials import trial_settings
from trmcloud.core.sweep import events as ev
from trmcloud.core.sweep.halving import Begin, next_moves
from trmcloud.core.sweep.job import SweepJob, dump_job, load_job
from trmcloud.core.sweep.priors import Tried
from trmcloud.core.sweep.space import Point
from trmcloud.core.sweep.state import SweepState, fold
from trmcloud.core.sweep.terms import SweepTerms
from trmcloud.core.values import replace
from trmcloud.operations.commands import commands
from trmcloud.operations.context import Context
from trmcloud.operations.launch import sweeping
from trmcloud.operations.plans.planning import Planner
from trmcloud.operations.sending.working_tree import pack
from trmcloud.operations.sweeps import sweep_priors
from trmcloud.operations.sweeps.sweep_facts import SweepFacts
from trmcloud.operations.sweeps.sweep_terms import terms_of
from trmcloud.pod.sweep.executor import sampler_of
from trmcloud.wiring_plans import build_planner

NOW = 1_795_000_000.0
SIZES = ("lr=log:1e-4,1", "width=64,128,256,512")


@pytest.fixture
def planner(tmp_path: Path) -> Planner:
    return build_planner(tmp_path, lambda: NOW)


def planned(
    planner: Planner, *space: str, words: tuple[str, ...] = (), **wish: Any
) -> tuple[RunSpec, Plan, SweepTerms]:
    wish = {"hardware": "1xH100", "budget": "20", **wish}
    if not words:
        wish.setdefault("recipe", "gpt350m")
    request, asked, search = sweeping.requests_of(space, words, wish)
    spec = sweeping.wish_of(planner, request, asked, search, Path())
    plan = planner.plan(spec)
    return spec, plan, terms_of(plan)


def history(tried: Mapping[Point, float | None], rung: int = 0) -> list[ev.SweepEvent]:
    """A journal whose trials have these metrics at ``rung``; None: it crashed."""
    events: list[ev.SweepEvent] = []
    for number, (point, metric) in enumerate(tried.items(), 1):
        events.append(ev.TrialStarted(number, point, 0, rung, Usd("0.1")))
        if metric is None:
            events.append(ev.TrialFailed(number, Usd("0.01"), 1.0, "out of memory"))
        else:
            events.append(ev.RungReached(number, rung, metric, Usd("0.05"), 5.0, 10))
    return events


class Home:
    """Sweeps that have run here, as the use case looks them up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.runs: dict[str, RunState] = {}
        self.facts: dict[str, SweepFacts] = {}
        monkeypatch.setattr(sweep_priors, "shown_runs", lambda context: self.runs)
        monkeypatch.setattr(sweep_priors, "sweep_of", lambda c, run: self.facts.get(run.run_id))

    def add(self, plan: Plan, terms: SweepTerms, tried: Mapping[Point, float | None]) -> str:
        run_id = f"r-{len(self.runs) + 1}"
        run = SimpleNamespace(
            run_id=run_id, plan=plan, recorded_plan=plan, spec=plan.spec,
            created_at=NOW + len(self.runs),
        )  # fmt: skip
        self.runs[run_id] = cast(RunState, run)
        events = tuple(history(tried))
        self.facts[run_id] = SweepFacts(terms, events, fold(events))
        return run_id

    def informed(self, planner: Planner, spec: RunSpec, here: Path = Path()) -> RunSpec:
        return sweep_priors.with_priors(cast(Context, None), planner, spec, here)


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Home:
    return Home(monkeypatch)


def at(**values: Any) -> Point:
    return tuple(values.items())


# -- memory ----------------------------------------------------------------------------------------


def test_the_table_says_of_each_point_what_the_planner_says(planner: Planner) -> None:
    """The second source is the planner's own prediction, made point by point."""
    space = ("lr=log:1e-3,1e-1", "width=int:512,8192,step=512", "depth=8,48", "batch=8,64")
    _, plan, terms = planned(planner, *space)
    chosen = plan.recommended
    assert chosen is not None
    room_gb = chosen.memory_gb * USABLE_SHARE
    table = sweep_priors.memory_of(plan, terms)
    assert table is not None
    assert {axis.name for axis in table.axes} == {"width", "depth", "batch"}
    seen = set()
    for width in range(512, 8193, 512):
        for depth in (8, 48):
            for batch in (8, 64):
                point = at(lr=0.01, width=width, depth=depth, batch=batch)
                settings = trial_settings(chosen.phases[0].settings, dict(point))
                fits = predict_memory(settings, 1).least <= room_gb
                assert table.fits(point) == fits, point
                seen.add(fits)
    assert seen == {True, False}


def test_what_cannot_fit_is_never_begun_in_a_whole_sweep(planner: Planner) -> None:
    """The sampler draws others in its place, from the record that travels."""
    _, plan, terms = planned(planner, "lr=log:1e-3,1e-1", "width=1024,2048,8192", "depth=24,48")
    job = load_job(dump_job(SweepJob(terms, sweep_priors.priors_of(plan, terms))))
    sampler = sampler_of(job.terms, "muon", job.priors)
    made = sampler.suggest([Tried(terms.default)], 60)
    chosen = plan.recommended
    assert chosen is not None
    room_gb = chosen.memory_gb * USABLE_SHARE
    assert len(made) == 60
    for point in made:
        settings = trial_settings(chosen.phases[0].settings, dict(point))
        assert predict_memory(settings, 1).least <= room_gb
    assert {dict(point)["width"] for point in made} >= {1024, 2048}


def test_the_smallest_machine_that_it_may_get_decides(planner: Planner) -> None:
    _, plan, terms = planned(planner, "lr=log:1e-3,1e-1", "width=1024,2048")
    table = sweep_priors.memory_of(plan, terms)
    assert table is not None
    assert table.fits(at(lr=0.01, width=2048))
    name = plan.launchable[0]
    chosen = plan.candidate(name)
    assert chosen is not None
    small = replace(chosen, id="c0", memory_gb=chosen.memory_gb / 4)
    both = replace(plan, candidates=(*plan.candidates, small), launchable=(name, "c0"))
    table = sweep_priors.memory_of(both, terms)
    assert table is not None
    assert not table.fits(at(lr=0.01, width=2048))


def test_a_default_that_cannot_fit_is_refused_before_money_is_spent(planner: Planner) -> None:
    _, plan, terms = planned(
        planner, "lr=log:1e-3,1e-1", "width=1024,16384", default=("width=16384",)
    )
    with pytest.raises(UsageError, match="the first trial needs"):
        sweep_priors.check_default_fits(plan, terms)


def test_slots_share_the_memory_of_a_machine_without_gpus(planner: Planner) -> None:
    rooms = []
    for slots in (1, 4):
        _, plan, terms = planned(
            planner, "lr=log:1e-3,1e-1", "width=64,128", recipe="shakespeare", hardware="local",
            rate="3.60", processes=1, slots=slots,
        )  # fmt: skip
        table = sweep_priors.memory_of(plan, terms)
        assert table is not None
        rooms.append(table.room_gb)
    assert rooms[0] == pytest.approx(4 * rooms[1])


def test_nothing_is_assumed_of_a_commands_memory(planner: Planner) -> None:
    _, plan, terms = planned(
        planner, "lr=0.1,0.2", words=("python3", "-m", "t", "{lr}"), metric="loss",
        hardware="local", rate="3.60", budget="1",
    )  # fmt: skip
    assert sweep_priors.memory_of(plan, terms) is None


# -- earlier sweeps --------------------------------------------------------------------------------


def test_earlier_trials_on_the_same_code_are_used_and_their_best_is_second(
    planner: Planner, home: Home
) -> None:
    _, plan, terms = planned(planner, *SIZES)
    tried = {
        terms.default: 3.0, at(lr=0.02, width=128): 2.0, at(lr=0.3, width=256): 2.5,
        at(lr=0.9, width=512): None,
    }  # fmt: skip
    run_id = home.add(plan, terms, tried)
    spec, plan, terms = planned(planner, "lr=log:1e-3,0.5", "width=64,128,256")
    informed = home.informed(planner, spec)
    assert informed.sweep is not None
    [earlier] = informed.sweep.earlier
    assert earlier.run_id == run_id
    assert [dict(each.point)["lr"] for each in earlier.trials] == [0.02, 0.3]
    [first] = informed.sweep.first
    assert (first.point, first.run_id, first.trial) == (at(lr=0.02, width=128), run_id, 2)
    again = RunSpec.from_json(informed.to_json())
    assert again == informed, "it is on record with the plan"
    plan = planner.plan(informed)
    terms = terms_of(plan)
    priors = sweep_priors.priors_of(plan, terms)
    sampler = sampler_of(terms, "muon", priors)
    state = SweepState()
    points = []
    for _ in range(2):
        [move] = next_moves(state, terms, 1, sampler, earlier=priors.tried())
        assert isinstance(move, Begin)
        points.append(move.point)
        done = ev.RungReached(move.trial, move.rung, 3.0, Usd("0.01"), 1.0, 5)
        state = fold([move.event, done], state)
    assert points == [terms.default, at(lr=0.02, width=128)]


@pytest.mark.parametrize(
    ("space", "wish"),
    [
        (SIZES, {"setting": ("depth=4",)}),
        (SIZES, {"setting": ("weight_decay=0.3",)}),
        (SIZES, {"recipe": "d24"}),
        (("lr=log:0.05,1", "width=64,128,256,512"), {}),
        (("width=64,256", "depth=2,3"), {}),
    ],
)
def test_a_trial_with_other_settings_is_not_taken_for_one_of_these(
    planner: Planner, home: Home, space: tuple[str, ...], wish: dict[str, Any]
) -> None:
    _, plan, terms = planned(planner, *SIZES)
    home.add(plan, terms, {at(lr=0.02, width=128): 2.0})
    try:
        spec, _, _ = planned(planner, *space, **wish)
    except UsageError as error:
        pytest.fail(f"{error}; {error.next_step}")
    assert home.informed(planner, spec) == spec


def test_another_way_to_write_the_same_settings_is_the_same(planner: Planner, home: Home) -> None:
    """A setting that one sweep searched is fixed in the other; the rate has its other name."""
    _, plan, terms = planned(planner, *SIZES)
    home.add(plan, terms, {at(lr=0.02, width=128): 2.0, at(lr=0.03, width=256): 1.0})
    chosen = plan.recommended
    assert chosen is not None
    rates = trial_settings(chosen.phases[0].settings, {"lr": 0.02})
    spec, _, _ = planned(
        planner, "matrix_lr=log:1e-3,1",
        setting=("width=128", f"embedding_lr={rates.embedding_lr}", f"head_lr={rates.head_lr}"),
    )  # fmt: skip
    informed = home.informed(planner, spec)
    assert informed.sweep is not None
    [earlier] = informed.sweep.earlier
    assert [each.point for each in earlier.trials] == [at(matrix_lr=0.02)]


def test_of_many_earlier_sweeps_the_newest_are_used_each_ranked_by_itself(
    planner: Planner, home: Home
) -> None:
    spec, plan, terms = planned(planner, *SIZES)
    for number in range(5):
        rates = [0.01 * (1 + number) + 1e-4 * n for n in range(40)]
        home.add(plan, terms, {at(lr=lr, width=64): 5.0 - lr for lr in rates})
    informed = home.informed(planner, spec)
    assert informed.sweep is not None
    assert [each.run_id for each in informed.sweep.earlier] == ["r-5", "r-4", "r-3"]
    assert [len(each.trials) for each in informed.sweep.earlier] == [40, 40, 20]
    own = sweep_priors.priors_of(planner.plan(informed), terms)
    assert load_job(dump_job(SweepJob(terms, own))).priors == own
    assert {each.sweep for each in own.tried()} == {1, 2, 3}
    best = informed.sweep.earlier[0].trials[0]
    assert best.point == informed.sweep.first[0].point == at(lr=0.0539, width=64)


def test_a_commands_trials_are_used_only_with_the_same_files(
    planner: Planner, home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "work"
    here.mkdir()
    (here / "t.py").write_text("print(1)")
    monkeypatch.chdir(here)
    request, asked, search = sweeping.requests_of(
        ("lr=log:0.1,1",), ("python3", "t.py", "{lr}"),
        {"metric": "loss", "hardware": "local", "rate": "3.60", "budget": "1"},
    )  # fmt: skip
    spec = sweeping.wish_of(planner, request, asked, search, here)
    assert spec.command is not None
    tree = commands.tree_of(spec, here)
    code = pack(tree, tmp_path / "packed")
    source = commands._source_of(tree, code, "")
    plan = planner.plan(replace(spec, command=replace(spec.command, source=source)))
    home.add(plan, terms_of(plan), {at(lr=0.2): 2.0})
    informed = home.informed(planner, spec, here)
    assert informed.sweep is not None
    assert [each.point for each in informed.sweep.first] == [at(lr=0.2)]
    (here / "t.py").write_text("print(2)")
    assert home.informed(planner, spec, here) == spec, "the code is another"
