"""The guard: ``trmcloud reap --yes`` on a timer of the user's own, systemd's or cron's.

What would be written is text first, so that it can be shown before it is written.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from trmcloud.core.errors import NotSupported, ProviderError, UsageError
from trmcloud.pod.files import write_atomic

UNIT = "trmcloud-reap"
_CRON_MARK = "# trmcloud guard"


class Guard(NamedTuple):
    """``kind``: systemd or cron. ``writes``: (path or "crontab", text) as they will stand."""

    kind: str
    writes: tuple[tuple[str, str], ...]


def plan_guard(
    *, kind: str, every_min: int, command: str, environment: dict[str, str], user_home: Path
) -> Guard:
    """What ``install`` will write. ``kind`` "" chooses what this machine has.

    Raises:
        UsageError: an interval that no timer can keep.
        NotSupported: neither systemd's user manager nor cron is here.
    """
    if not 1 <= every_min <= 59:
        raise UsageError("--every takes 1 to 59 minutes", next_step="--every 5")
    kind = kind or _available()
    line = f"{shlex.quote(command)} reap --yes --guard-every {every_min}"
    if kind == "cron":
        settings = " ".join(f"{key}={shlex.quote(value)}" for key, value in environment.items())
        entry = f"*/{every_min} * * * * {settings} {line} >/dev/null 2>&1 {_CRON_MARK}\n"
        return Guard("cron", (("crontab", entry.replace("%", r"\%")),))
    folder = user_home / ".config" / "systemd" / "user"
    exports = "".join(f'Environment="{key}={value}"\n' for key, value in environment.items())
    service = (
        "[Unit]\nDescription=End trmcloud pods that no live run owns\n\n"
        f"[Service]\nType=oneshot\n{exports}ExecStart={line}\n"
    )
    timer = (
        "[Unit]\nDescription=Every few minutes, and once after being off\n\n"
        f"[Timer]\nOnBootSec=1min\nOnUnitActiveSec={every_min}min\nPersistent=true\n\n"
        "[Install]\nWantedBy=timers.target\n"
    )
    return Guard(
        "systemd",
        ((str(folder / f"{UNIT}.service"), service), (str(folder / f"{UNIT}.timer"), timer)),
    )


def install(guard: Guard) -> None:
    """Write what was shown, and switch it on."""
    if guard.kind == "cron":
        _write_crontab(_crontab_without_ours() + guard.writes[0][1])
        return
    for path, text in guard.writes:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_atomic(Path(path), text)
    _run(["systemctl", "--user", "daemon-reload"])
    _run(["systemctl", "--user", "enable", "--now", f"{UNIT}.timer"])


def installed(user_home: Path) -> str | None:
    """ "systemd", "cron" or None: which guard is in place."""
    if (user_home / ".config" / "systemd" / "user" / f"{UNIT}.timer").exists():
        return "systemd"
    if shutil.which("crontab") and _CRON_MARK in _crontab():
        return "cron"
    return None


def remove(user_home: Path) -> str | None:
    """Take the guard out; which kind it was."""
    kind = installed(user_home)
    if kind == "cron":
        _write_crontab(_crontab_without_ours())
    elif kind == "systemd":
        _run(["systemctl", "--user", "disable", "--now", f"{UNIT}.timer"], may_fail=True)
        for suffix in ("service", "timer"):
            folder = user_home / ".config" / "systemd" / "user"
            (folder / f"{UNIT}.{suffix}").unlink(missing_ok=True)
        _run(["systemctl", "--user", "daemon-reload"], may_fail=True)
    return kind


def _available() -> str:
    if shutil.which("systemctl"):
        asked = subprocess.run(
            ["systemctl", "--user", "show-environment"], capture_output=True, check=False
        )
        if asked.returncode == 0:
            return "systemd"
    if shutil.which("crontab"):
        return "cron"
    raise NotSupported(
        "this machine has neither systemd's user manager nor cron",
        next_step="run `trmcloud reap --yes` every few minutes from a scheduler of yours",
    )


def _crontab() -> str:
    answer = subprocess.run(["crontab", "-l"], capture_output=True, text=True, check=False)
    return answer.stdout if answer.returncode == 0 else ""


def _crontab_without_ours() -> str:
    lines = [line for line in _crontab().splitlines() if _CRON_MARK not in line]
    return "".join(line + "\n" for line in lines)


def _write_crontab(text: str) -> None:
    answer = subprocess.run(
        ["crontab", "-"], input=text, capture_output=True, text=True, check=False
    )
    if answer.returncode != 0:
        raise ProviderError(
            f"cron refused the table: {answer.stderr.strip()}", next_step="crontab -e"
        )


def _run(command: list[str], *, may_fail: bool = False) -> None:
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode != 0 and not may_fail:
        raise ProviderError(f"{shlex.join(command)}: {answer.stderr.strip()}")
