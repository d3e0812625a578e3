"""A rented pod's word on every screen: said to be the pod's; a run on this machine as it was."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli import told_home
from trmcloud.app.checkpoints import shelf
from trmcloud.app.checkpoints.saving import Asked, Place
from trmcloud.app.context import Context
from trmcloud.app.receipts import receipt_of
from trmcloud.app.run_facts import facts_of
from trmcloud.cli.commands.stop import _show
from trmcloud.cli.page.shown import run_json
from trmcloud.cli.views import run_bar, status
from trmcloud.cli.views.html_page import page_of
from trmcloud.cli.views.reasons import words_of
from trmcloud.core.contract.notices import Notice, NoticeKind
from trmcloud.core.contract.pod_contract import Kept
from trmcloud.core.control.run_state import RunState
from trmcloud.core.outcome import Outcome
from trmcloud.wiring import build_chain, build_context

BY_POD = "by the pod's report"


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("told") / "home"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRMCLOUD_HOME", str(home))
        told_home.write(home)
    return home


@pytest.fixture
def context(told: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    made = tmp_path / "home"
    shutil.copytree(told, made)
    monkeypatch.setenv("TRMCLOUD_HOME", str(made))
    return build_context()


def local_run(context: Context) -> RunState:
    runs = context.ledger.read().runs
    return next(runs[i] for o, i in told_home.RUNS.items() if runs[i].trained_here and _kept(o))


def rented_run(context: Context) -> RunState:
    return context.ledger.read().runs[told_home.LIVE_RUN]


def _kept(outcome: Outcome) -> bool:
    return outcome not in (Outcome.NOT_STARTED, Outcome.UNFIT, Outcome.LOST)


def test_the_table_marks_what_a_pod_told(
    context: Context, capsys: pytest.CaptureFixture[str]
) -> None:
    status.show_table(context, [rented_run(context)])
    shown = capsys.readouterr().out
    assert "1.402*" in shown
    assert "s1000*" in shown
    assert [line for line in shown.splitlines() if line.startswith(f"* {BY_POD}")]
    status.show_table(context, [local_run(context)])
    shown = capsys.readouterr().out
    assert "1.402" in shown
    assert "*" not in shown
    assert BY_POD not in shown


def test_one_run_says_whose_training_losses_and_gate_it_shows(
    context: Context, capsys: pytest.CaptureFixture[str]
) -> None:
    status.show_one(context, rented_run(context))
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    for row in ("training", "losses", "best"):
        assert BY_POD in rows[row], row
    landed = context.ledger.read().runs[told_home.RUNS[Outcome.FINISHED]]
    for run in (landed, local_run(context)):
        status.show_one(context, run)
        shown = capsys.readouterr().out
        assert (f"passed {BY_POD}" in shown) == (not run.trained_here)
        assert (BY_POD in shown) == (not run.trained_here)


def test_json_of_status_names_who_reported(
    context: Context, capsys: pytest.CaptureFixture[str]
) -> None:
    status.show_json(context, [rented_run(context), local_run(context)])
    rented, local = json.loads(capsys.readouterr().out)
    assert (rented.get("reported_by"), rented["best"].get("reported_by")) == ("pod", "pod")
    assert (local.get("reported_by", ""), local["best"].get("reported_by", "")) == (None, None)


def test_the_bar_says_whose_losses_and_best_they_are(context: Context) -> None:
    for run in (rented_run(context), local_run(context)):
        beat = context.files.heartbeat(run.run_id, "fast")
        assert beat is not None
        beat = replace(beat, saved_step=900, best_step=900)
        words = run_bar.training_words(run, beat) + run_bar.money_words(run, beat, beat.at)
        about = [word for word in words if "1.4" in word or "ℓ" in word or "saved" in word]
        assert len(about) == 4
        assert all(word.startswith("pod") != run.trained_here for word in about), about


def test_a_notice_of_a_pods_word_says_so() -> None:
    facts: dict[NoticeKind, dict[str, Any]] = {
        NoticeKind.STARTED: {"phase": "fast"},
        NoticeKind.GATE: {"phase": "fast", "passed": True},
        NoticeKind.ENDED: {"outcome": "finished", "phase": "fast", "step": 9, "val_bpb": 1.4},
        NoticeKind.TROUBLE: {"what": "crashed", "phase": "fast", "step": 9, "mended": False},
    }
    for kind, known in facts.items():
        bare = words_of(Notice("i", kind, "r-1", 1.0, known))
        assert BY_POD not in bare["text"]
        said = words_of(Notice("i", kind, "r-1", 1.0, known | {"reported_by": "pod"}))
        assert BY_POD in said["text"], kind


def test_the_page_says_whose_numbers_it_shows(context: Context) -> None:
    for run in (rented_run(context), local_run(context)):
        training = run_json(facts_of(context, run))["training"]
        by = None if run.trained_here else "pod"
        assert (training.get("reported_by", ""), training["bpb"]) == (by, "1.402")
        assert (BY_POD in training["best"]) == (by == "pod")


def test_a_receipts_page_says_whose_numbers_it_shows(context: Context) -> None:
    chain = build_chain()
    rented = context.ledger.read().runs[told_home.RUNS[Outcome.LANDED]]
    runs = [rented, local_run(context)]
    if rented.trained_here:
        runs[0] = rented_run(context)
    for run in runs:
        page = unescape(page_of(receipt_of(context, chain, run, "trmcloud")))
        if run.trained_here:
            assert BY_POD not in page
        else:
            summary, _, rest = page.partition('<section id="asked">')
            assert BY_POD in summary
            assert BY_POD in rest.partition('<section id="checkpoints">')[2].partition("<script")[0]


@pytest.mark.parametrize(
    ("kind", "final", "safe"),
    [(shelf.HERE, True, True), (shelf.BUCKET, True, False), (shelf.VOLUME, True, False),
     (shelf.POD, False, False)],
)  # fmt: skip
def test_saved_is_safe_only_where_bytes_were_read_here(
    context: Context, capsys: pytest.CaptureFixture[str], kind: str, final: bool, safe: bool
) -> None:
    run, asked = rented_run(context), Asked(told_home.LIVE_RUN, 1, 1)
    kept = Kept("fast", 120, "ab" * 32, 1010, val_bpb=1.5)
    place = Place(kept, "s3://x/y", final=final, at=shelf.Place(kind, "s3://x/y"))
    _show(run, place, asked, as_json=True)
    made = json.loads(capsys.readouterr().out)
    assert (made["safe"], made.get("reported_by")) == (safe, "pod")
    _show(run, place, asked, as_json=False)
    first = capsys.readouterr().out.splitlines()[0]
    assert (BY_POD in first) == (not safe)
    assert len(first) <= 80
