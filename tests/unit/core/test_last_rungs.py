"""The last rungs, where they are asked for: what a lease names of a recipe, and what is refused.

The recipes are read from the disk: what needs none of them is asked in ``test_climbing``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from trmcloud.adapters.files.recipes import load_recipe
from trmcloud.core.contract.climbing import CLIMBS
from trmcloud.core.contract.recovery import LAST_RUNGS, OUT_OF_MEMORY, next_rung
from trmcloud.core.errors import UsageError
from trmcloud.core.spec.overrides import check_last_rungs, overridden, parse_last_rungs, recoverable


def test_a_lease_names_what_was_asked_for_and_can_be_cut() -> None:
    trm = load_recipe("trm-tiny").resolve("fast", hardware="local", gpus=1)
    rows = load_recipe("bd3lm-small").resolve("train", hardware="local", gpus=1)
    assert {"depth", "sequence"}.isdisjoint(recoverable(trm))
    both = recoverable(trm, last_rungs=("depth", "sequence"))
    assert (both["depth"], both["sequence"]) == (trm.depth, trm.sequence)
    assert recoverable(trm)[CLIMBS] is True
    assert CLIMBS not in recoverable(trm, ["batch"])
    assert CLIMBS not in recoverable(trm, ["accumulation"])
    assert "sequence" not in recoverable(rows, last_rungs=("depth", "sequence"))
    check_last_rungs(("depth", "sequence"), [trm, rows])
    with pytest.raises(UsageError, match="can never help: its rows are made as long as they are"):
        check_last_rungs(("sequence",), [rows])


@pytest.mark.parametrize(
    ("name", "phase", "changed", "rung", "why"),
    [
        ("trm-tiny", "fast", {"depth": 1}, "depth", "a depth of 1 is not cut"),
        ("trm-tiny", "fast", {"sequence": 48}, "sequence", "a sequence of 48 is not cut"),
        ("trm-tiny", "fast", {"sequence": 65}, "sequence", "a sequence of 65 is not cut"),
        ("hdp-small", "train", {}, "sequence", "its rows are made as long as they are"),
        (
            *("bd3lm-small", "train", {"rows": "bestfit", "sequence": 64, "block": 64}),
            *("sequence", "blocks of 64 do not divide a sequence of 32"),
        ),
    ],
)
def test_a_rung_that_can_never_be_tried_is_refused_and_in_no_lease(
    name: str, phase: str, changed: dict[str, Any], rung: str, why: str
) -> None:
    """A trainer would not start with what it makes, and the phase would end by that instead."""
    recipe = load_recipe(name)
    settings = replace(recipe.resolve(phase, hardware="local", gpus=1), **changed)
    assert rung not in recoverable(settings, last_rungs=LAST_RUNGS)
    with pytest.raises(UsageError) as caught:
        check_last_rungs(LAST_RUNGS, [settings])
    assert caught.value.what == f"--last-rungs {rung} can never help: {why}"
    assert caught.value.next_step == f"leave {rung} out of it, or plan with --set {rung}=…"
    other = next(each for each in LAST_RUNGS if each != rung)
    check_last_rungs([other], [settings])
    least = {"batch": 1, "activation_checkpointing": True, "compile": False, "loader_workers": 0}
    in_lease = recoverable(settings, last_rungs=LAST_RUNGS) | least
    tried = next_rung(in_lease, (), OUT_OF_MEMORY)
    assert tried is not None
    assert tried[0] == other
    assert getattr(overridden(settings, tried[1]), other) < getattr(settings, other)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("width", "not 'width'"),
        ("depth,x", "not 'x'"),
        ("depth,", "names nothing"),
        (" ", "names nothing"),
    ],
)
def test_what_is_no_last_rung_is_refused(text: str, said: str) -> None:
    assert parse_last_rungs("sequence, depth") == ("depth", "sequence")
    with pytest.raises(UsageError, match=said):
        parse_last_rungs(text)
