"""What a guide promises beside what a run came to, and which formats its trainings took."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.core.manifests import manifest
from trmcloud.app import formats
from trmcloud.app.target import judged
from trmcloud.cli.views.formats import format_rows, formats_json
from trmcloud.cli.views.target import target_lines
from trmcloud.core.control.reported import Reported
from trmcloud.core.values import replace

TRAINED = {"family": "gpt", "data": "openwebtext", "tokenizer": "gpt2"}


def run_of(recipe: str = "gpt350m", data: str = "") -> Any:
    return SimpleNamespace(spec=SimpleNamespace(recipe=recipe, data=data), run_id="r-1")


def best(nats: float = 3.2, **settings: str) -> Any:
    made = replace(manifest(step=7000), settings={**TRAINED, **settings})
    return replace(made, step_losses=(nats,), val_bpb=0.98)


def test_a_loss_above_the_guides_fails_and_the_guides_own_arithmetic_is_told() -> None:
    made = judged(run_of(), best(), 1.5)
    assert made is not None
    assert made.passed is False
    first, *why = target_lines(Reported(made, here=True))
    assert first.startswith("FAILED: validation loss 3.2000 nats a token (0.980 bits per byte)")
    assert first.endswith("after 1.50 h of training; the guide's is 3.0781 in 1.5 h")
    assert "172 to 221 %" in why[0]
    assert "1.0B tokens, not 3.78B" in why[1]
    assert made.to_json()["passed"] is False


def test_a_loss_at_the_guides_passes_and_needs_no_more_words() -> None:
    made = judged(run_of(), best(3.0781), 8.0)
    assert made is not None
    assert made.passed is True
    assert target_lines(Reported(made, here=True)) == [
        "passed: validation loss 3.0781 nats a token (0.980 bits per byte) at "
        f"{best().label} after 8.00 h of training; the guide's is 3.0781 in 1.5 h"
    ]


@pytest.mark.parametrize(
    ("run", "settings"), [(run_of(data="mine.txt"), {}), (run_of(), {"tokenizer": "bpe"})]
)
def test_a_loss_on_other_data_or_tokens_is_not_judged(run: Any, settings: dict[str, str]) -> None:
    made = judged(run, best(2.0, **settings), 1.0)
    assert made is not None
    assert made.passed is None
    assert "not judged" in target_lines(Reported(made, here=True))[0]
    assert "openwebtext in gpt2's tokens" in target_lines(Reported(made, here=True))[0]


def test_nothing_is_judged_that_nobody_promised_or_evaluated() -> None:
    assert judged(run_of("trm"), best(), 1.0) is None
    assert judged(run_of(), None, 1.0) is None
    assert judged(run_of(), replace(best(), step_losses=()), 1.0) is None


# -- number formats -----------------------------------------------------------------------------


def told(monkeypatch: pytest.MonkeyPatch, lines: list[dict[str, Any]]) -> Any:
    monkeypatch.setattr(formats, "planned_phases", lambda run: [SimpleNamespace(name="train")])
    return SimpleNamespace(files=SimpleNamespace(metrics=lambda run_id, phase: lines))


def test_what_was_taken_and_left_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    context = told(
        monkeypatch,
        [
            {"kind": "start", "step": 0},
            {"kind": "precision", "step": 0, "taken": "float16", "why": "old", "left": []},
            {"kind": "start", "step": 40},
            {
                "kind": "precision", "step": 40, "taken": "bfloat16", "why": "float8 is slower",
                "left": [["torchao-tensorwise", "torchao is not installed"]],
            },
            {"kind": "attention", "step": 40, "left": [["FlexAttention", "no Triton"]]},
            {"kind": "train", "step": 41},
        ],
    )  # fmt: skip
    assert format_rows(context, run_of()) == [
        ("precision", "train: bfloat16: float8 is slower"),
        ("  not", "torchao-tensorwise: torchao is not installed"),
        ("  not", "FlexAttention: no Triton"),
    ]
    [row] = formats_json(context, run_of())
    assert (row["taken"], row["step"], len(row["left"])) == ("bfloat16", 40, 2)


def test_a_pods_nonsense_is_cut_and_on_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    line = {
        "kind": "precision", "step": "x", "taken": "a\nb\x1b[31m", "why": "w" * 9999,
        "left": [["one"], "two", ["x", 3], ["y\n", "z"]] + [["n", "m"]] * 99,
    }  # fmt: skip
    rows = format_rows(told(monkeypatch, [line]), run_of())
    assert rows[0] == ("precision", f"train: a b: {'w' * 240}")
    assert rows[1:3] == [("  not", "x: "), ("  not", "y : z")]
    assert len(rows) == 9
    for bad in ({"kind": "precision", "left": 7}, {"kind": "attention"}):
        assert format_rows(told(monkeypatch, [bad]), run_of()) == []
