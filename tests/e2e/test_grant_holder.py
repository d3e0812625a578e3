"""A grant of another user of this machine: nothing that it starts here acts as the ledger's owner.

A process becomes the second user by number, which needs root and no entry in passwd.
"""

from __future__ import annotations

import os
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trmcloud.api import Home
from trmcloud.app.holder import Holder, _Ground, holder_of
from trmcloud.app.trial import log_path
from trmcloud.core.errors import DoesNotFit, GrantRefused, NotSupported, UsageError

UID = 54_321
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start another user")


@pytest.fixture
def ground(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that the second user can reach, with the owner's home and its own work in it; pytest
    keeps its folders from other users."""
    with tempfile.TemporaryDirectory(prefix="holder-test-") as made:
        base = Path(made)
        base.chmod(0o755)
        (base / "home").mkdir(mode=0o700)
        (base / "home" / "runpod-key").write_text("the-owners-key")
        work = base / "work"
        work.mkdir()
        os.chown(work, UID, UID)
        monkeypatch.setenv("RUNPOD_API_KEY", "the-owners-key")
        Home(base / "home").give_grant("agent", "5")
        yield base


def the_agent(ground: Path) -> Home:
    return Home(ground / "home", principal="agent", run_as=str(UID))


def tried(ground: Path, source: str) -> str:
    """Return the output of a script that the second user tried."""
    (ground / "work" / "train.py").write_text(source)
    home = the_agent(ground)
    try:
        trial = home.try_command(["python3", "train.py"], here=ground / "work", for_s=20)
    except NotSupported as error:
        pytest.skip(f"no Python here that another user may start: {error}")
    return log_path(ground / "home", trial, "agent").read_text()


def test_what_is_tried_runs_as_the_holder_and_reads_neither_ledger_nor_keys(ground: Path) -> None:
    home = ground / "home"
    secrets = [home / "ledger.db", home / "runpod-key", home / "ledger.head"]
    told = tried(
        ground,
        f"""
import os
print("users", os.getresuid(), os.getresgid(), os.getgroups())
for path in [*{[str(path) for path in secrets]!r}, "/proc/{os.getpid()}/environ"]:
    try:
        print("READ", path, open(path, "rb").read(20))
    except OSError as error:
        print("denied", path)
try:
    os.setuid(0)
    print("BECAME root")
except OSError:
    print("stays")
print("keys", [name for name in os.environ if "KEY" in name or "the-owners" in os.environ[name]])
try:
    open({str(home / "written")!r}, "w")
    print("WROTE")
except OSError:
    print("step=1 loss=2.0")
""",
    )
    assert f"users ({UID}, {UID}, {UID}) ({UID}, {UID}, {UID}) []" in told
    assert told.count("denied") == 4
    assert "stays" in told
    assert "keys []" in told
    assert not {"READ", "BECAME", "WROTE"} & set(told.split())
    assert "the-owners-key" not in told
    assert not (home / "written").exists()


def test_the_working_tree_is_read_as_the_holder(ground: Path) -> None:
    """Neither a link nor a folder of the owner's gets into what is sent."""
    home, work = ground / "home", ground / "work"
    (work / "data").symlink_to(home)
    (work / "key").symlink_to(home / "runpod-key")
    (home / "train.py").write_text("print('the owner')")
    told = tried(ground, "import os\nprint('names', sorted(os.listdir('.')))\nprint('step=1')")
    assert "names ['train.py']" in told
    agent = the_agent(ground)
    for here in (home, ground / "nowhere"):
        with pytest.raises(Exception, match=r"no files|ended|gave no answer|read"):
            agent.try_command(["python3", "train.py"], here=here, for_s=5)
    wish = {"hardware": "1xH100", "budget": "1"}
    with pytest.raises(Exception, match=r"no files|gave no answer|read"):
        agent.plan_command(["python3", "train.py"], here=home, **wish)


def test_settings_of_the_holders_repository_start_nothing_as_the_owner(ground: Path) -> None:
    """git starts the program that a repository's core.fsmonitor names when it lists files."""
    work, seen = ground / "work", ground / "seen"
    seen.mkdir()
    seen.chmod(0o777)
    (work / "train.py").write_text("print('step=1 loss=2')")
    spy = work / "spy.sh"
    spy.write_text(f"#!/bin/sh\nid -u >> {seen}/uids\n")
    spy.chmod(0o755)
    subprocess.run(["chown", "-R", f"{UID}:{UID}", str(work)], check=True)
    mine: dict[str, Any] = {"cwd": work, "user": UID, "group": UID, "extra_groups": []}
    for words in (["init", "-q"], ["add", "train.py"], ["config", "core.fsmonitor", str(spy)]):
        plain = {"PATH": os.environ["PATH"], "HOME": str(work)}
        subprocess.run(["git", *words], check=True, env=plain, **mine)
    agent = the_agent(ground)
    try:
        agent.plan_command(["python3", "train.py"], here=work, hardware="1xH100", budget="1")
    except NotSupported as error:
        pytest.skip(f"no Python here that another user may start: {error}")
    except DoesNotFit:
        pass  # no offer: the tree was read before
    uids = set((seen / "uids").read_text().split())
    assert uids == {str(UID)}, "git has started it, as the holder alone"


def test_what_cannot_run_as_the_holder_is_refused(ground: Path) -> None:
    home, work = ground / "home", ground / "work"
    (work / "train.py").write_text("print('step=1')")
    agent = the_agent(ground)
    local: dict[str, Any] = {"rate": "3.60", "budget": "1"}
    with pytest.raises(NotSupported) as refused:
        agent.run_command(["python3", "train.py"], here=work, hardware="local", **local)
    if "nothing can be started" in str(refused.value):
        pytest.skip(f"no Python here that another user may start: {refused.value}")
    assert "local is refused" in str(refused.value)
    with pytest.raises(NotSupported, match="local is refused"):
        agent.launch("local", recipe="trm-tiny", phase="fast", **local)
    for name, value in {"data": str(home), "initial_from": str(home), "recipe": "/x.toml"}.items():
        with pytest.raises(NotSupported, match=f"{name}: a file or folder is refused"):
            agent.plan(hardware="local", **{"recipe": "trm-tiny", **local, name: value})
    with pytest.raises(GrantRefused, match="env"):
        agent.run_command(["python3"], here=work, hardware="local", env=["RUNPOD_API_KEY"])
    unknown = Home(home, principal="agent", run_as="")
    with pytest.raises(NotSupported, match="not known which user"):
        unknown.try_command(["python3", "train.py"], here=work)


@pytest.mark.parametrize("user", ["0", "root", "no-such-user", str(1 << 40)])
def test_users_that_hold_no_grant(ground: Path, user: str) -> None:
    with pytest.raises(UsageError, match=r"ledger's owner|no user"):
        Home(ground / "home", principal="agent", run_as=user)


def test_a_home_that_the_holder_can_read_is_refused(ground: Path) -> None:
    (ground / "home").chmod(0o755)
    with pytest.raises(NotSupported, match="is open to"):
        the_agent(ground)
    (ground / "home").chmod(0o750)
    the_agent(ground)
    os.chown(ground / "home", 0, UID)
    with pytest.raises(NotSupported, match="is open to"):
        the_agent(ground)


@pytest.mark.parametrize("kind", ["link", "hard link", "pipe", "folder", "another's"])
def test_nothing_but_the_holders_own_plain_file_is_read_back(ground: Path, kind: str) -> None:
    holder = holder_of(ground / "home", str(UID))
    secret = ground / "home" / "runpod-key"
    with _Ground(holder, []) as made:
        path = made.folder / "answer.json"
        match kind:
            case "link":
                path.symlink_to(secret)
            case "hard link":
                os.link(secret, path)
            case "pipe":
                os.mkfifo(path)
            case "folder":
                path.mkdir()
            case _:
                path.write_text("the-owners-key")
        assert made.read("answer.json", 100) == b""
        assert stat.S_IMODE(made.folder.parent.stat().st_mode) == 0o711


def test_the_same_user_is_not_another_one(ground: Path) -> None:
    assert holder_of(ground / "home", None).is_self
    assert holder_of(ground / "home", "") == Holder("", -1, -1, ())
