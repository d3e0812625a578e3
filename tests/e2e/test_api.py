"""``trmcloud.api`` as a program uses it: plan, launch, events, save, land, fetch, go on, wait."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.user import User
from tests.standins import scripts
from trmcloud.api import Home
from trmcloud.core.errors import ConflictError, Outcome, UsageError
from trmcloud.core.money import Usd
from trmcloud.operations.runs.run_facts import Run

#: As ``tests.e2e.user.SMALL`` says it on a command line.
SMALL: dict[str, Any] = {
    "recipe": "trm-tiny", "phase": "fast", "data": "python-stdlib", "rate": "3.60",
    "setting": (
        "depth=1", "width=32", "vocab_size=256", "sequence=64", "eval_tokens=1024",
        "eval_every=10", "save_every=20",
    ),
}  # fmt: skip


#: A stranger's script, as ``run`` would be told of it.
WORDS = ("python3", "train.py")
OWN: dict[str, Any] = {
    "hardware": "local", "rate": "3.60", "budget": Usd("0.02"), "grace": 2.0,
    "checkpoints": Path("out"), "checkpoint_gb": 0.001, "metric": "val_loss=([0-9.]+)",
}  # fmt: skip


@pytest.fixture
def project(user: User) -> Path:
    made = user.folder / "project"
    made.mkdir()
    (made / "train.py").write_text(scripts.PLAIN)
    return made


@pytest.fixture
def home(user: User, monkeypatch: pytest.MonkeyPatch) -> Home:
    for name, value in user.env().items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(user.folder)
    return Home()


def test_a_program_trains_saves_lands_fetches_and_goes_on(
    home: Home, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRMCLOUD_STANDIN_HOLD", str(user.hold()))
    assert home.runs() == ()
    plan = home.plan(hardware="local", budget=Usd("1"), steps=400, **SMALL)
    run = home.launch(plan.id)
    assert (run.live, run.state, run.money.cap) == (True, "running", Usd("1"))
    assert run.money.left == run.money.cap - run.money.at_most
    reached = home.wait(run.id, until=lambda now: _step(now) >= 40, timeout_s=60)
    assert _step(reached) >= 40
    assert [layer.name for layer in reached.layers if layer.state == "armed"]

    assert home.foresee("save", run.id).at_most <= Usd("0.01")
    place = home.save(run.id)
    assert place.kind == "here"
    assert Path(place.where).is_dir()
    seen = home.foresee("land", run.id)
    assert Usd("0") < seen.at_most < run.money.cap
    assert home.land(run.id).landing
    with pytest.raises(ConflictError, match="was already asked to land"):
        home.land(run.id)
    ended = home.wait(run.id)
    assert (ended.outcome, ended.live) == (Outcome.STOPPED, False)
    assert home.foresee("land", run.id).refused == "it has ended: stopped"

    kinds = [event.kind for event in home.events(run.id)]
    assert kinds[:2] == ["RunPlanned", "Reserved"]
    assert kinds[-1] == "Closed"
    first, *rest = home.events(run.id, follow=False)
    assert [event.id for event in home.events(run.id, after=first.id)] == [e.id for e in rest]
    assert json.dumps(first.facts)

    curves = home.curves(run.id)
    assert curves.train.step == sorted(curves.train.step)
    assert 0 < curves.train.usd[-1] <= float(ended.money.proven)
    best = next(each for each in home.checkpoints(run.id) if each.best)
    fetched = home.fetch_best(run.id)
    assert (fetched.checkpoint, fetched.sha256) == (best.label, best.sha256)
    assert (Path(fetched.folder) / "weights.safetensors").exists()
    assert home.health(run.id) == {}

    (user.folder / "hold").unlink()
    again = home.resume(run.id, cap="2")
    assert again.money.cap == Usd("2")
    last = home.wait(run.id)
    assert (last.outcome, _step(last)) == (Outcome.FINISHED, 400)
    assert home.run(run.id) == last
    assert [each.id for each in home.runs()] == [run.id]
    assert home.runs(ended=False) == ()


def test_a_program_runs_a_command_of_its_own(home: Home, user: User, project: Path) -> None:
    plan = home.plan_command(WORDS, here=project, **OWN)
    assert plan.spec.command is not None
    assert (plan.spec.command.words, plan.cap) == (WORDS, Usd("0.02"))
    with pytest.raises(UsageError, match="is for a command, and does not contain its code"):
        home.launch(plan.id)
    assert home.runs() == ()

    run = home.run_command(WORDS, here=project, **OWN)
    assert (run.live, run.money.cap) == (True, Usd("0.02"))
    ended = home.wait(run.id)
    assert ended.outcome is Outcome.LANDED
    assert Usd("0") < ended.money.proven <= Usd("0.02")
    fetched = home.fetch_best(run.id, into=user.folder / "best")
    [own] = (Path(fetched.folder) / "own").iterdir()
    assert hashlib.sha256(own.read_bytes()).hexdigest() == fetched.sha256
    step = int(own.stem.removeprefix("step-"))
    assert fetched.checkpoint == f"train/step-{step:08d}"
    assert fetched.val_bpb == pytest.approx(100 / step, abs=1e-3)


def _step(run: Run) -> int:
    return run.training.step if run.training is not None else 0
