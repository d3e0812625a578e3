"""``trmcloud guard``: timers of cron and systemd, by stand-ins of their commands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.user import User
from tests.typist import InProcess, RenterInProcess, quick_renter, typist

__all__ = ["quick_renter", "typist"]


@pytest.fixture
def user(typist: InProcess) -> InProcess:
    return typist


def test_the_guard_shows_what_it_writes_and_takes_it_out_again(user: InProcess) -> None:
    """A crontab of the test's own stands in for the user's."""
    table = _with_crontab(user)
    table.write_text("0 1 * * * echo mine\n")
    shown = user.run("admin", "guard", "install", "--cron", "--every", "7", "-y")
    written = table.read_text()
    assert written.startswith("0 1 * * * echo mine\n")
    entry = written.splitlines()[1]
    assert entry in shown
    assert entry.startswith("*/7 * * * * ")
    assert f"TRMCLOUD_HOME={user.home}" in entry
    made = user.json("admin", "guard", "install", "--cron", "--every", "5", "-y", "--json")
    assert (made["installed"], made["last_visit_at"]) == ("cron", None)
    assert table.read_text().count("trmcloud-guard") == 1
    assert "cron" in user.run("admin", "guard", "status")

    command = table.read_text().splitlines()[1].split("* * * * ", 1)[1].split(" >/dev/null")[0]
    subprocess.run(["sh", "-c", command], env=user.env(), check=True)
    assert "reaper     has not run yet" not in user.run("admin", "guard", "status")
    assert user.json("admin", "guard", "status", "--json")["every_s"] == 300.0
    assert user.json("admin", "guard", "remove", "--json")["installed"] is None
    assert table.read_text() == "0 1 * * * echo mine\n"
    user.run("admin", "guard", "status", code=3)


def test_a_timer_of_an_earlier_version_goes_on_and_can_be_removed(user: InProcess) -> None:
    table = _with_crontab(user)
    user.run("admin", "guard", "install", "--cron", "-y")
    entry = table.read_text().replace(" admin reap ", " reap ").replace("trmcloud-g", "trmcloud g")
    table.write_text(entry)
    assert "cron" in user.run("admin", "guard", "status")
    command = entry.split("* * * * ", 1)[1].split(" >/dev/null")[0]
    subprocess.run(["sh", "-c", command], env=user.env(), check=True)
    assert "reaper     has not run yet" not in user.run("admin", "guard", "status")
    user.run("admin", "guard", "remove")
    assert table.read_text() == ""


def _with_crontab(user: User) -> Path:
    """The file in which a crontab of the test's own keeps what is installed."""
    bin_dir = user.folder / "bin"
    bin_dir.mkdir()
    table = user.folder / "crontab.txt"
    table.write_text("")
    script = bin_dir / "crontab"
    script.write_text(f'#!/bin/sh\n[ "$1" = -l ] && exec cat {table}\nexec cat > {table}\n')
    script.chmod(0o755)
    user.environment["PATH"] = f"{bin_dir}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    return table


def test_a_timer_that_would_start_without_the_key_is_not_installed(
    quick_renter: RenterInProcess,
) -> None:
    """cron and systemd know nothing of the shell in which the key was exported."""
    table = _with_crontab(quick_renter)
    install = ("admin", "guard", "install", "--cron", "-y")
    said = quick_renter.refused(*install, code=2)
    assert "RUNPOD_API_KEY" in said
    assert ".runpod/config.toml" in said
    assert table.read_text() == ""
    config = quick_renter.folder / ".runpod" / "config.toml"
    config.parent.mkdir()
    config.write_text(f'apikey = "{quick_renter.standin.api_key}"\n')
    before = quick_renter.asked("GET")
    shown = quick_renter.run(*install)
    assert quick_renter.asked("GET") > before  # it was tried
    assert quick_renter.standin.api_key not in shown + table.read_text()
    assert "trmcloud-guard" in table.read_text()
    bare = {"HOME": str(quick_renter.folder), "PATH": "/usr/bin:/bin"}
    command = table.read_text().split("* * * * ", 1)[1].split(" >/dev/null")[0]
    subprocess.run(["sh", "-c", command], env=bare, check=True)
    assert "reaper     has not run yet" not in quick_renter.run("admin", "guard", "status")


def test_a_timer_whose_key_is_refused_is_not_installed(quick_renter: RenterInProcess) -> None:
    """Nothing is rented there yet: the guard would find out when it is needed."""
    table = _with_crontab(quick_renter)
    config = quick_renter.folder / ".runpod" / "config.toml"
    config.parent.mkdir()
    config.write_text('apikey = "rpa_REVOKED"\n')
    del quick_renter.environment["RUNPOD_API_KEY"]
    said = quick_renter.refused("admin", "guard", "install", "--cron", "-y", code=11)
    assert "gets no list from runpod" in said
    assert "REVOKED" not in said
    assert table.read_text() == ""
    code, _, err = quick_renter.ended("admin", "reap")
    assert (code, "runpod gave no list: RunPod does not know this key" in err) == (11, True)
    config.unlink()
    assert "the reaper runs every 5 min" in quick_renter.run(
        "admin", "guard", "install", "--cron", "-y"
    )


def test_a_timer_whose_reaper_fails_is_not_installed(user: InProcess) -> None:
    table = _with_crontab(user)
    user.home.mkdir()
    (user.home / "ledger.db").write_text("no ledger")
    said = user.refused("admin", "guard", "install", "--cron", "-y", code=11)
    assert "damaged" in said
    assert table.read_text() == ""


def test_without_cron_or_systemd_it_is_said_plainly(user: InProcess) -> None:
    bin_dir = user.folder / "bin"
    bin_dir.mkdir()
    user.environment["PATH"] = str(bin_dir)
    said = user.refused("admin", "guard", "install", "-y", code=12)
    assert "there is no systemctl" in said
    assert "there is no crontab" in said
    systemctl = bin_dir / "systemctl"
    systemctl.write_text("#!/bin/sh\nexit 1\n")
    systemctl.chmod(0o755)
    assert "no manager for this user" in user.refused("admin", "guard", "install", "-y", code=12)


def test_a_systemd_timer_that_ends_with_the_login_says_so(user: InProcess) -> None:
    """systemctl and loginctl of the test's own: what they are asked is what systemd documents."""
    bin_dir = user.folder / "bin"
    bin_dir.mkdir()
    asked = user.folder / "asked"
    for name, answer in (("systemctl", "true"), ("loginctl", "echo ${LINGER:-no}")):
        (bin_dir / name).write_text(f'#!/bin/sh\necho {name} "$@" >> {asked}\n{answer}\n')
        (bin_dir / name).chmod(0o755)
    user.environment["PATH"] = f"{bin_dir}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    assert "enable-linger" in user.run("admin", "guard", "install", "-y")
    assert "enable --now trmcloud-reap.timer" in asked.read_text()
    assert "enable-linger" in user.run("admin", "guard", "status")
    user.environment["LINGER"] = "yes"
    assert "enable-linger" not in user.run("admin", "guard", "status")
    user.run("admin", "guard", "remove")
    user.run("admin", "guard", "status", code=3)
