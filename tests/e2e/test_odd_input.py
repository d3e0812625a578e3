"""Odd but right: any characters, folders, outputs and homes side by side."""

from __future__ import annotations

import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.user import LAUNCH, SMALL, User, until
from trmcloud.core.control.run_state import State
from trmcloud.core.errors import Outcome

NewUser = Callable[[str], User]


def test_any_characters_in_paths_and_prompts(new_user: NewUser) -> None:
    user = new_user("a 'quoted\" user – 用户 é")
    (user.folder / "my text; $(rm).txt").write_text("def f(x):\n    return x\n" * 3000)
    small = [part.replace("python-stdlib", "my text; $(rm).txt") for part in SMALL]
    user.run("launch", "local", *small, "--phase", "fast", "--steps", "20", "--budget", "1", "-y")
    fetched = user.json("fetch-best", "--into", 'the "best" – 最好', "--json")
    assert Path(fetched["folder"]).name == 'the "best" – 最好'
    assert (user.folder / 'the "best" – 最好' / "manifest.json").exists()
    assert 'the "best" – 最好' in user.run("status", fetched["run"])


def test_folders_named_like_packages_are_not_imported(user: User) -> None:
    for name in ("model", "torch", "sky", "json", "rich", "typer", "numpy", "tokenizers"):
        (user.folder / name).mkdir()
        (user.folder / name / "__init__.py").write_text(f"raise SystemExit('imported {name}')")
    command = Path(sys.executable).with_name("trmcloud")
    if not command.exists():
        pytest.skip("the trmcloud command is not installed here")
    arguments = (*LAUNCH, "--steps", "20", "--budget", "1")
    done = subprocess.run(
        [command, *arguments], cwd=user.folder, env=user.env(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "imported" not in done.stdout + done.stderr


def test_a_folder_that_is_gone(owner: User) -> None:
    gone = owner.folder / "gone"
    gone.mkdir()
    command = f"rmdir ../gone; exec {sys.executable} -P -m trmcloud"
    for arguments, code, says in (
        ("status", 0, ""),
        ("fetch-best", 2, "the folder you are in is gone"),
    ):
        gone.mkdir(exist_ok=True)
        done = subprocess.run(
            ["sh", "-c", f"{command} {arguments}"],
            cwd=gone, env=owner.env(), capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        assert says in done.stderr
        assert "Traceback" not in done.stderr


def test_streams_that_nobody_holds(owner: User) -> None:
    python = f"{sys.executable} -P -m trmcloud"
    launch = " ".join(part for part in (*LAUNCH, "--budget", "1") if part != "-y")
    for command, code, says in (
        (f"{python} status | true", 0, ""),
        (f"{python} status >&-", 0, ""),
        (f"{python} nothing 2>&-", 2, ""),
        (f"{python} report >/dev/full", 1, "free some disk space"),
        (f"{python} status <&-", 0, ""),
        (f"{python} {launch} <&-", 2, "this is not a terminal"),
        (f"{python} status <&- >&- 2>&-", 0, ""),
    ):
        done = subprocess.run(
            ["sh", "-c", command], cwd=owner.folder, env=owner.env(), capture_output=True, text=True
        )
        assert done.returncode == code, (command, done.stderr)
        assert says in done.stderr
        assert "Traceback" not in done.stderr
        assert "unexpected" not in done.stderr


def test_a_reader_that_leaves_does_not_end_what_it_read(user: User) -> None:
    arguments = " ".join((*LAUNCH, "--steps", "40", "--budget", "1"))
    command = f"{sys.executable} -P -m trmcloud {arguments}; echo $? > code"
    done = subprocess.run(
        ["sh", "-c", f"({command}) | head -n 1"],
        cwd=user.folder, env=user.env(), capture_output=True, text=True,
    )  # fmt: skip
    assert (user.folder / "code").read_text() == "0\n", done.stderr
    assert done.stderr == ""
    run = user.only_run()
    assert (run.state, run.outcome) == (State.CLOSED, Outcome.FINISHED)


def test_a_home_is_its_owners_alone(new_user: NewUser) -> None:
    user = new_user("private")
    user.environment["TRMCLOUD_HOME"] = ""
    home = user.folder / ".trmcloud"
    user.run("plan", "--budget", "100")
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    home.chmod(0o755)
    user.run("status")
    assert stat.S_IMODE(home.stat().st_mode) == 0o700, "one that an earlier version made, too"
    named = user.folder / "team"
    named.mkdir(mode=0o755)
    user.environment["TRMCLOUD_HOME"] = str(named)
    user.run("status")
    assert stat.S_IMODE(named.stat().st_mode) == 0o755, "whom it is for was said by the user"


def test_a_terminal_that_knows_ascii_alone(owner: User) -> None:
    owner.environment |= {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    run = owner.only_run().run_id
    for arguments in (("status", run), ("report",), ("plan", "--budget", "100"), ("--help",)):
        assert owner.run(*arguments).isascii()
    assert "ok python" in owner.run("doctor")
    assert "no such file" in owner.refused(*LAUNCH, "--budget", "1", "--data", "é.txt", code=9)


def test_two_homes_do_not_meet(new_user: NewUser) -> None:
    users = [new_user("ada"), new_user("bob")]
    running = [
        user.start(*LAUNCH, "--steps", str(steps), "--budget", "1")
        for user, steps in zip(users, (40, 100_000), strict=True)
    ]
    until(lambda: bool(users[1].live_pods()))
    out, err = running[0].communicate(timeout=60)
    assert running[0].returncode == 0, out + err
    users[0].run("status")
    assert users[1].live_pods()
    users[1].stop()
    running[1].communicate(timeout=60)
    assert not users[1].only_run().live
    assert len(users[0].ledger().runs) == 1
