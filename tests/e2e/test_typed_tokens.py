"""A token that is typed in a command is refused at every door before anything is stored; where an
earlier version has kept one, no screen, document, page or receipt shows it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.documents import document_in
from tests.e2e.on_page import Serving
from tests.e2e.user import User
from trmcloud.api import Home
from trmcloud.core.errors import ReceiptError, UsageError

TOKEN = "hf_" + "aB3dE6gH9jK" * 3
COMMAND = ("python3", "train.py", "--token", TOKEN)
TRAINS = """
import os
os.makedirs("out", exist_ok=True)
for step in range(1, 31):
    print(f"step {step} val_loss={9 / step:.4f}", flush=True)
open("out/step-30.pt", "w").write("30")
"""
HERE = ("local", "--rate", "3.60", "--budget", "0.05")
OWN = ("--checkpoints", "out", "--checkpoint-gb", "0.001", "--metric", "val_loss=([0-9.]+)")


@pytest.fixture
def project(user: User) -> Path:
    made = user.folder / "project"
    made.mkdir()
    (made / "train.py").write_text(TRAINS)
    user.cwd = made
    return made


def kept(user: User) -> list[str]:
    """Files below the user's folder that hold the token."""
    paths = [path for path in user.folder.rglob("*") if path.is_file()]
    return [str(path) for path in paths if TOKEN.encode() in path.read_bytes()]


def test_a_program_and_an_agent_are_refused_too(
    user: User, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in user.env().items():
        monkeypatch.setenv(name, value)
    home = Home()
    wish: dict[str, Any] = {
        "here": project, "hardware": "local", "rate": "3.60", "budget": "0.05",
        "checkpoints": "out", "checkpoint_gb": 0.001, "metric": "val_loss",
    }  # fmt: skip
    trial = {name: wish[name] for name in ("here", "checkpoints", "metric")}
    home.give_grant("agent", "1")
    agent = Home(principal="agent")
    for each in (home, agent):
        for call, more in (
            (each.plan_command, wish), (each.run_command, wish), (each.try_command, trial),
        ):  # fmt: skip
            with pytest.raises(UsageError, match="holds a token"):
                call(COMMAND, **more)
        for sweep in (each.plan_sweep, each.sweep):
            with pytest.raises(UsageError, match="holds a token"):
                sweep(["lr=1|2"], (*COMMAND, "{lr}"), **wish)
    assert kept(user) == []
    pytest.importorskip("mcp", reason="the SDK of the Model Context Protocol is not installed")
    from tests.e2e.agents import connected, own, stdio

    with connected(stdio(user)) as client:
        for tool, given in (
            ("plan", own(COMMAND)), ("try", {"command": list(COMMAND)}),
            ("plan_sweep", {**own((*COMMAND, "{lr}")), "space": ["lr=1|2"]}),
        ):  # fmt: skip
            told = client.refused(tool, **given)["error"]
            assert "holds a token" in told["message"]
            assert TOKEN not in json.dumps(told)
    assert kept(user) == []


def test_one_that_an_earlier_version_kept_is_shown_nowhere(
    user: User, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in user.env().items():
        monkeypatch.setenv(name, value)
    wish: dict[str, Any] = {
        "here": project, "hardware": "local", "rate": "3.60", "budget": "0.05", "grace": 2.0,
        "checkpoints": "out", "checkpoint_gb": 0.001, "metric": "val_loss=([0-9.]+)",
    }  # fmt: skip
    with monkeypatch.context() as earlier:
        earlier.setattr("trmcloud.options.find_token", lambda text: "", raising=False)
        home = Home()
        plan = home.plan_command(COMMAND, **wish)
        run = home.wait(home.run_command(COMMAND, **wish).id)
    assert kept(user), "the plan, the ledger and the manifest have it"
    receipt = user.folder / "receipt.html"
    shown = []
    for words in (
        ("status", "--all", "-v"), ("status", run.id, "--json"), ("report", run.id, "--json"),
        ("report", run.id, "-v"), ("fetch-best", run.id, "--json"), ("logs", run.id),
        ("report", run.id, "--html", str(receipt)), ("report", run.id, "--html", str(receipt),
        "--json"), ("budget", "history", "--json"), ("logs", "-f", run.id, "--json"),
    ):  # fmt: skip
        code, out, err = user.ended(*words)
        assert code == 0, f"{words}: {out}{err}"
        shown.append(out + err)
    shown.append(receipt.read_text())
    bundle = str(user.folder / "bundle.tar.gz")
    shown.append("".join(user.ended("doctor", "--bundle", run.id, "--into", bundle)[1:]))
    assert plan.id
    assert not [text[:200] for text in shown if TOKEN in text]
    assert any("[removed: token]" in text for text in shown)
    # What was removed is no damage, and no proof: its record's hash cannot be checked.
    code, out, err = user.ended("report", "--verify", str(receipt), "--json")
    assert code in (0, ReceiptError.exit_code), out + err
    told = {each["code"]: each for each in document_in(out)["checks"]}
    assert told["chain"]["verdict"] == "open", told
    assert {told[name]["verdict"] for name in ("hashes", "account", "ledger")} == {"matches"}, told
    _page_shows_nothing(user, run.id)


def _page_shows_nothing(user: User, run_id: str) -> None:
    pytest.importorskip("uvicorn", reason="the extra `ui`")
    page = Serving(user)
    try:
        for path in ("", f"/{run_id}", f"/{run_id}/launched", f"/{run_id}/log"):
            status, told = page.ask(f"/api/runs{path}")
            assert status == 200, path
            assert TOKEN not in json.dumps(told), path
    finally:
        page.kill()
