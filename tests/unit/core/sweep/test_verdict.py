from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from tests.present import present
from trmcloud.core.money import Usd
from trmcloud.core.sweep.space import Point, read_words
from trmcloud.core.sweep.state import Result, SweepState, Trial, TrialState
from trmcloud.core.sweep.terms import Goal, SweepTerms, make_terms
from trmcloud.core.sweep.verdict import (
    Finding,
    best_so_far,
    expected_gain,
    importance,
    judge,
    quarters,
)

SPACE = read_words(["lr=log:1e-4,1e-2", "width=int:64,256,step=32", "noise=uniform:0,1"])


def terms_of(goal: Goal = Goal.MIN) -> SweepTerms:
    return make_terms(
        SPACE, SPACE.default({})[0], metric="loss", goal=goal, usd=Usd(100), full_usd=Usd(9),
        slot_rate=Usd("3.6"),
    )  # fmt: skip


def trial(
    number: int,
    *metrics: float,
    repeats: int = 0,
    complete: bool = False,
    spent: float = 1.0,
    point: Point = (),
) -> Trial:
    results = tuple(
        Result(rung, metric, Usd.from_micros(int((spent + rung / 100) * 1e6)))
        for rung, metric in enumerate(metrics)
    )
    state = TrialState.COMPLETE if complete else TrialState.PAUSED
    return Trial(
        number, point or SPACE.default({})[0], 0, state, 3, rung=len(metrics) - 1,
        repeats=repeats, results=results,
    )  # fmt: skip


def state_of(*trials: Trial, spent: str = "80") -> SweepState:
    return SweepState({each.number: each for each in trials}, spent=Usd(spent))


def whole(number: int, metric: float, repeats: int = 0) -> Trial:
    return trial(number, 9, 8, 7, metric, repeats=repeats, complete=True)


def test_a_gain_beyond_noise_has_an_interval_above_zero() -> None:
    state = state_of(
        whole(1, 2.00), whole(2, 1.00), whole(3, 1.02, repeats=2), whole(4, 2.02, repeats=1)
    )
    found = judge(state, terms_of())
    assert (found.finding, found.winner, found.rung, found.seeds) == (Finding.BETTER, 2, 3, 4)
    # By hand: s² = (2 × 0.0002) ÷ 2, t of 2 degrees of freedom 4.303, √(1/1 + 1/2).
    half = 4.303 * math.sqrt(0.0002) * math.sqrt(1.5)
    assert found.gain == pytest.approx(2.01 - 1.02)
    assert (found.low, found.high) == pytest.approx((0.99 - half, 0.99 + half))
    assert found.noise == pytest.approx(math.sqrt(0.0002))


def test_nothing_beats_the_default_by_more_than_noise() -> None:
    state = state_of(
        whole(1, 2.0), whole(2, 1.9), whole(3, 2.1, repeats=2), whole(4, 1.95, repeats=1)
    )
    found = judge(state, terms_of())
    assert found.finding is Finding.NOT_BETTER
    assert found.low is not None
    assert found.low < 0


def test_the_winners_first_seed_is_no_evidence_for_it() -> None:
    lucky = state_of(
        whole(1, 2.0), whole(2, 0.5), whole(3, 2.0, repeats=2), whole(4, 2.0, repeats=1)
    )
    assert judge(lucky, terms_of()).gain == pytest.approx(0.0)


def test_a_goal_of_most_turns_the_sign() -> None:
    state = state_of(
        whole(1, 80.0), whole(2, 90.0), whole(3, 90.1, repeats=2), whole(4, 80.1, repeats=1)
    )
    found = judge(state, terms_of(Goal.MAX))
    assert found.finding is Finding.BETTER
    assert found.gain == pytest.approx(10.05)


def test_without_other_seeds_nothing_is_claimed() -> None:
    state = state_of(trial(1, 9, 8), whole(2, 1.0))
    found = judge(state, terms_of())
    assert (found.finding, found.rung, found.gain) == (Finding.NOT_TESTED, 1, 0)
    assert found.low is None


def test_the_default_as_winner_and_no_result() -> None:
    assert judge(state_of(whole(1, 1.0), whole(2, 2.0)), terms_of()).finding is Finding.DEFAULT
    assert judge(state_of(trial(1)), terms_of()).finding is Finding.NO_RESULT


@pytest.mark.parametrize("goal", Goal)
def test_a_false_better_is_as_rare_as_stated(goal: Goal) -> None:
    """Of settings that are all alike 3.1 % seem better, though the best of 20 wins."""
    rng = random.Random(3)
    seen = 0
    for _ in range(1000):
        metrics = [rng.gauss(0, 1) for _ in range(21)]
        best = (min if goal is Goal.MIN else max)(range(21), key=metrics.__getitem__)
        if best == 0:
            continue
        state = state_of(
            whole(1, metrics[0]), whole(2, metrics[best]),
            whole(3, rng.gauss(0, 1), repeats=2), whole(4, rng.gauss(0, 1), repeats=1),
        )  # fmt: skip
        seen += judge(state, terms_of(goal)).finding is Finding.BETTER
    assert 10 <= seen <= 45


def test_the_setting_that_matters_is_named_first() -> None:
    rng = random.Random(1)
    trials = []
    for number in range(1, 61):
        point = SPACE.point([rng.random() for _ in range(3)])
        rate, width, _ = (share or 0.0 for share in SPACE.shares(point))
        # The rate has its best in the middle: no line through the ranks shows that.
        trials.append(trial(number, (rate - 0.5) ** 2 * 4 + 0.2 * width, point=point))
    found = importance(state_of(*trials), terms_of())
    assert found[0].name == "lr"
    assert found[0].share > 0.5
    assert {each.name: each.share for each in found}["noise"] < 0.1
    assert importance(state_of(*trials[:5]), terms_of()) == ()


def test_quarters_say_what_the_money_bought() -> None:
    state = state_of(
        trial(1, 5.0, spent=10), trial(2, 4.0, spent=30), trial(3, 4.5, spent=50),
        trial(4, 3.0, spent=79), trial(5, 0.1, spent=5, repeats=4),
    )  # fmt: skip
    found = quarters(state, terms_of())
    assert [(each.spent, each.best, each.trial, each.trials) for each in found] == [
        (Usd(20), 5.0, 1, 1), (Usd(40), 4.0, 2, 2), (Usd(60), 4.0, 2, 3), (Usd(80), 3.0, 4, 4),
    ]  # fmt: skip
    assert [each[2] for each in best_so_far(state, terms_of())] == [1, 2, 4]


def test_more_dollars_gain_what_the_last_doublings_did() -> None:
    # The best is 9 after a quarter of the $80, 4 after a half, and 3 at the end.
    begun = (trial(1, 9.0, spent=10), trial(2, 4.0, spent=30), trial(3, 5.0, spent=50))
    state = state_of(*begun, trial(4, 3.0, spent=70))
    quarter = (9 + (3 + 4 * 0.75 + 5 * 0.75**2 + 9 * 0.75**3) / (1 + 0.75 + 0.75**2 + 0.75**3)) / 2
    half = (4 + (3 + 4 / 2 + 5 / 4 + 9 / 8) / (1 + 1 / 2 + 1 / 4 + 1 / 8)) / 2
    last, before = half - 3.0, quarter - half
    ratio = last / before
    assert expected_gain(state, terms_of(), Usd(80)) == pytest.approx(last * ratio)
    assert expected_gain(state, terms_of(), Usd(240)) == pytest.approx(last * (ratio + ratio**2))
    # A gain that does not shrink is not made to grow.
    late = state_of(*(trial(n, 9.0, spent=10 * n) for n in range(1, 7)), trial(7, 1.0, spent=79))
    found = present(expected_gain(late, terms_of(), Usd(80)))
    assert 0 < found <= 8.0
    assert expected_gain(state_of(*begun), terms_of()) is None
    alike = state_of(*(trial(n, 3.0, spent=10 * n) for n in range(1, 7)))
    assert expected_gain(alike, terms_of()) == 0.0


def test_more_dollars_train_what_stands_at_every_rung_that_they_reach() -> None:
    # From rung to rung others gained 2, 1 and 0.5: trial 5 at rung 1 has 1.5 before it.
    others = [trial(n, 9.0, 7.0, 6.0, 5.5, complete=True, spent=n) for n in range(1, 5)]
    state = state_of(*others, trial(5, 7.0, 5.0, spent=60), spent="8000")
    terms = terms_of()
    to_end = terms.most_usd(1, 3)
    assert expected_gain(state, terms, to_end) == pytest.approx(1.5, abs=0.02)
    next_rung = terms.most_usd(1, 2)
    assert expected_gain(state, terms, next_rung) == pytest.approx(1.0, abs=0.02)
    assert expected_gain(state, terms, next_rung - Usd.from_micros(1)) == pytest.approx(0, abs=0.02)
    # What failed cannot be trained on, and a metric to be maximised is no other case.
    failed = replace(state.trials[5], state=TrialState.FAILED)
    assert expected_gain(state_of(*others, failed, spent="8000"), terms, to_end) == pytest.approx(
        0, abs=0.02
    )
    mirrored = [
        replace(t, results=tuple(replace(r, metric=-(r.metric or 0)) for r in t.results))
        for t in state.trials.values()
    ]
    found = expected_gain(state_of(*mirrored, spent="8000"), terms_of(Goal.MAX), to_end)
    assert found == pytest.approx(1.5, abs=0.02)
