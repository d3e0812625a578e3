"""Of command, agent and watchdog one alone keeps the budget, the others held by SIGSTOP or dead."""

from __future__ import annotations

from pathlib import Path

from tests.e2e import stops
from tests.e2e.stops import (
    AGENT,
    COMMAND,
    KILL,
    STOP,
    TRAINER,
    WATCHDOG,
    Blow,
    Round,
    drawn,
    source_hash,
)

ALONE = (
    Round(0, "0.018", True, (Blow(WATCHDOG, STOP, 1.0), Blow(AGENT, STOP, 1.0))),
    Round(1, "0.018", True, (Blow(COMMAND, STOP, 1.0), Blow(WATCHDOG, STOP, 1.0))),
    Round(
        2,
        "0.018",
        True,
        (Blow(COMMAND, KILL, 1.0), Blow(AGENT, STOP, 1.0), Blow(TRAINER, STOP, 2.0)),
    ),
)


def test_each_layer_alone_ends_the_pod_within_the_kill_latency(tmp_path: Path) -> None:
    """The command alone, the agent alone, the watchdog alone, and one round that is drawn."""
    results = stops.play_all((*ALONE, drawn(3, source_hash())), tmp_path, jobs=4)
    for result in results:
        assert result.holds, f"{result.round}: {result}"
    for result in results[:3]:
        assert len(result.round.untouched) == 1
        assert result.late_s > -5.0, (
            "it lived until its hard stop: a round that ends before is moot"
        )
