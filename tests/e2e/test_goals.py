"""A run with a goal, from its plan to its receipt, with a stand-in trainer and real processes."""

from __future__ import annotations

import json
from pathlib import Path

from tests.e2e.user import User
from trmcloud.core.errors import Outcome

_SETTINGS = (
    "settings = { depth = 1, width = 32, vocab_size = 256, sequence = 64, eval_tokens = 1024, "
    'steps = 40, eval_every = 10, save_every = 20, data = "python-stdlib" }'
)


def goal_of(user: User, limit: str) -> str:
    """The path of a goal of the user's own."""
    rows = (
        '[mine]\ntitle = "A result"\nmetric = "val_bpb"\nrecipe = "trm-tiny"\nphases = ["fast"]',
        limit, _SETTINGS,
    )  # fmt: skip
    path = user.folder / "mine.toml"
    path.write_text("\n".join(rows) + "\n")
    return str(path)


def test_a_run_says_whether_it_reached_its_goal(user: User) -> None:
    limit, reached = "at_most = 0.001", False
    words = ("--goal", goal_of(user, limit), "--rate", "3.60", "--budget", "1", "-y")
    out = user.run("launch", "local", *words)
    run = user.only_run()
    assert run.outcome is Outcome.FINISHED
    said = "reached" if reached else "not reached"
    assert f"  goal mine: {said}: bits per byte " in out
    assert f"goal mine: {said}: " in user.run("report", run.run_id)
    goal = user.json("status", run.run_id, "--json")["runs"][0]["goal"]
    assert (goal["name"], goal["reached"], goal["reported_by"]) == ("mine", reached, None)
    assert goal["checkpoint"].startswith("fast/step-")
    page = user.folder / "receipt.html"
    user.run("report", run.run_id, "--html", str(page))
    assert f"goal mine: <strong>{said}</strong>: bits per byte" in page.read_text()
    assert user.json("report", "--verify", str(page), "--json")["matches"] is True
    receipt = user.json("report", run.run_id, "--html", str(page), "--json")["receipt"]
    assert receipt["account"]["goal"]["reached"] is reached
    # The table may change, and its file go: a run is judged by the row of its launch.
    Path(user.folder / "mine.toml").unlink()
    assert f"goal mine: {said}: " in user.run("report", run.run_id)


def test_a_receipt_of_an_earlier_version_is_still_whole(user: User) -> None:
    """Wishes have gained fields since: what it lacks has the value of then."""
    from trmcloud.core.control.receipt import _hashes, canonical, read_receipt

    user.run("launch", "local", "--goal", goal_of(user, "at_most = 99.0"), "--budget", "1", "-y",
             "--rate", "3.60")  # fmt: skip
    path = user.folder / "receipt.html"
    made = user.json("report", "--html", str(path), "--json")["receipt"]
    data = json.loads(json.dumps(made))
    for name in ("if_slow", "chat_data"):
        del data["account"]["asked"][name]
    data["sha256"] = _hashes(data)
    old = user.folder / "old.json"
    old.write_text(canonical(data) + "\n")
    assert read_receipt(old.read_text()).data == data
    checks = user.json("report", "--verify", str(old), "--json")["checks"]
    assert {c["code"]: c["verdict"] for c in checks}["account"] == "matches"
