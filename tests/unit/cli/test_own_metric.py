"""A command's own metric is called by its own name where nothing needs to run for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trmcloud.core.contract.metric_names import figures_of
from trmcloud.core.contract.notices import Notice, NoticeKind
from trmcloud.operations.narration import words_of

STATIC = Path(__file__).resolve().parents[3] / "trmcloud" / "cli" / "static"


def test_boards_get_it_by_its_name() -> None:
    line = {"val_bpb": -0.7, "metric": {"name": "val_acc", "value": 0.7}, "step": 3}
    assert dict(figures_of("eval", line)) == {"eval/val_acc": 0.7}
    hostile = {"val_bpb": -0.7, "metric": {"name": "a b\x1b", "value": 0.7}}
    assert dict(figures_of("eval", hostile)) == {"eval/metric": 0.7}
    assert dict(figures_of("eval", {"val_bpb": 2.3})) == {"eval/val_bpb": 2.3}


def test_a_notice_names_it() -> None:
    facts: dict[str, Any] = {
        "outcome": "landed",
        "spent_usd": "0.1",
        "cap_usd": "1",
        "phase": "train",
        "step": 30,
    }
    own = {**facts, "kind": "command", "metric": "val_acc", "value": 0.7}
    text = words_of(Notice("x", NoticeKind.ENDED, "r-1", 0.0, own))["text"]
    assert "train step 30, val_acc 0.7" in text
    assert "its checkpoints are kept" in text
    assert "bits per byte" not in text
    assert "bpb" not in text
    recipe = words_of(Notice("x", NoticeKind.ENDED, "r-1", 0.0, {**facts, "val_bpb": 2.3}))
    assert "train step 30, bpb 2.300" in recipe["text"]


def test_the_page_has_no_name_of_its_own_for_a_metric() -> None:
    for path in STATIC.glob("*.js"):
        text = path.read_text(encoding="utf-8")
        assert "bits per byte" not in text.lower(), path.name
        assert ".bpb" not in text, path.name
