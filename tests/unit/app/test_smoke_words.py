from trmcloud.app.smoke_plan import RECIPE, meaning_of
from trmcloud.core.outcome import Outcome
from trmcloud.core.run_state import RunState


def test_a_smoke_run_trains_nothing_and_says_so_of_no_end() -> None:
    smoke, training = RunState("r-1", plan={"recipe": RECIPE}), RunState("r-2", plan={})
    for outcome in Outcome:
        told = meaning_of(smoke, outcome)
        for word in ("trained", "saved", "checkpoint"):
            assert word not in told or outcome in (Outcome.GATE_FAILED, Outcome.UNHEARD)
        assert meaning_of(training, outcome) == outcome.meaning
    assert meaning_of(smoke, Outcome.FINISHED) == "its pod was looked at, and has ended"
