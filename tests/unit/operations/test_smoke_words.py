from tests.plans import recorded
from trmcloud.core.control.reason import MEANINGS
from trmcloud.core.control.run_state import RunState
from trmcloud.core.errors import Outcome
from trmcloud.operations.runs.conditions import SMOKE, meaning_of


def test_a_smoke_run_trains_nothing_and_says_so_of_no_end() -> None:
    smoke, training = (
        RunState(name, recorded_plan=recorded(recipe=recipe))
        for name, recipe in (("r-1", SMOKE), ("r-2", "trm"))
    )
    for outcome in Outcome:
        told = meaning_of(smoke, outcome)
        for word in ("trained", "saved", "checkpoint"):
            assert word not in told or outcome in (Outcome.GATE_FAILED, Outcome.UNREPORTED)
        assert meaning_of(training, outcome) == MEANINGS[outcome]
    assert meaning_of(smoke, Outcome.FINISHED) == "its pod was checked, and has ended"
