"""What was mended, in words: plain whatever a pod says."""

from __future__ import annotations

from typing import Any

import pytest

from trmcloud.app.recovered import Recovered
from trmcloud.cli.views.health import done_about, happened, lost
from trmcloud.core.contract.recovery import AGAIN, SKIPPED, Recovery
from trmcloud.core.money import Usd


def row(what: str, rung: str, **more: Any) -> Recovered:
    made = Recovery(what, rung, **{"step": 1240, "lost_steps": 12, "lost_s": 34.0, **more})
    return Recovered(1, "fast", made, Usd("0.034"))


@pytest.mark.parametrize(
    ("made", "what", "done"),
    [
        (
            row("out_of_memory", "batch", changed={"batch": 2, "accumulation": 8}, why="no room"),
            "fast step 1,240: ran out of memory (no room)",
            "started again with batch 2 × accumulation 8",
        ),
        (
            row("out_of_memory", "checkpointing", changed={"activation_checkpointing": True}),
            "fast step 1,240: ran out of memory",
            "started again with activation checkpointing on",
        ),
        (
            row("diverged", "rate", changed={"rate": 0.25}),
            "fast step 1,240: the loss rose and stayed up",
            "started again with 0.25 of its learning rates",
        ),
        (
            row("lost", AGAIN, why="no step for 301 s", times=2),
            "fast step 1,240: the trainer stood still, twice (no step for 301 s)",
            "started again from its last checkpoint",
        ),
        (
            row("lost", AGAIN, times=12),
            "fast step 1,240: a process of the trainer was lost, 12 times",
            "started again from its last checkpoint",
        ),
        (
            row("unsound", SKIPPED, times=3),
            "fast step 1,240: 3 steps were left out, not finite or far above those before",
            "the data went on, and the weights stayed as they were",
        ),
    ],
)
def test_each_kind_has_its_words(made: Recovered, what: str, done: str) -> None:
    assert (happened(made), done_about(made)) == (what, done)


def test_what_it_cost_is_told_in_steps_time_and_money() -> None:
    assert lost(row("lost", AGAIN)) == "12 steps · 34 s · $0.0340 lost"
    assert lost(row("lost", AGAIN, lost_steps=1)).startswith("1 step · ")


def test_words_of_a_pod_steer_no_terminal_and_fill_no_screen() -> None:
    bad = row("lost", AGAIN, why="\x1b[2J\u202ebad\r\n" + "x" * 290, changed={"k": "\x1b[2J"})
    for text in (happened(bad), done_about(bad)):
        assert text.isprintable()
        assert len(text) < 220
    assert "\u202e" not in happened(bad)
