"""The reaper's timer: ``trmcloud admin reap --yes`` every few minutes, by systemd or cron.

What would be written is text first, so that it can be shown before it is written; and the command
is tried in the environment that the timer will give it, which is not the user's shell.
"""

from __future__ import annotations

import getpass
import json
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from trmcloud.core.errors import NotSupported, ProviderError, UsageError
from trmcloud.io.files import write_atomic

UNIT = "trmcloud-reap"
_CRON_MARK = "# trmcloud-guard"
_MARKS = (_CRON_MARK, _CRON_MARK.replace("-", " "))
"""The last is that of earlier versions."""
_TRIAL_S = 120.0
#: What the reaper needs of the user's shell, none of it secret: a timer starts with nearly nothing.
_HANDED_ON = (
    "PATH", "https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY", "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
)  # fmt: skip
_CRON_DAEMONS = frozenset({"cron", "crond", "fcron", "dcron", "anacron"})


class Guard(NamedTuple):
    """``kind``: systemd or cron. ``writes``: (path or "crontab", text) as they will stand."""

    kind: str
    writes: tuple[tuple[str, str], ...]


class Trial(NamedTuple):
    """``error``: why the command failed as a whole; ``unreachable``: providers that gave it no
    list, and why."""

    error: str
    unreachable: Mapping[str, str]


class ReaperTimer:
    """One user's timer for one home: the reaper is given ``environ``'s part that is no secret.
    ``variables`` say how providers are reached."""

    def __init__(
        self, environ: Mapping[str, str], home: Path, user_home: Path, variables: Sequence[str]
    ) -> None:
        kept = {name: environ[name] for name in (*_HANDED_ON, *variables) if environ.get(name)}
        self._environment = {"TRMCLOUD_HOME": str(home), **kept}
        self._user_home = user_home
        self._units = user_home / ".config" / "systemd" / "user"

    @property
    def environment(self) -> dict[str, str]:
        """All that the reaper will see."""
        bare = {"HOME": str(self._user_home), "PATH": "/usr/bin:/bin", "SHELL": "/bin/sh"}
        return {**bare, **self._environment}

    def plan(self, command: str, *, every_min: int, cron: bool) -> Guard:
        """Plan the files that ``install`` will write, for cron or for what this machine has.

        Raises:
            UsageError: an interval that no timer can keep.
            NotSupported: neither systemd's user manager nor cron is here.
        """
        if not 1 <= every_min <= 59:
            raise UsageError("--every takes 1 to 59 minutes", next_step="--every 5")
        line = f"{shlex.quote(command)} admin reap --yes --guard-every {every_min}"
        given = self._environment.items()
        if cron or _available() == "cron":
            settings = " ".join(f"{key}={shlex.quote(value)}" for key, value in given)
            entry = f"*/{every_min} * * * * {settings} {line} >/dev/null 2>&1 {_CRON_MARK}\n"
            return Guard("cron", (("crontab", entry.replace("%", r"\%")),))
        exports = "".join(f'Environment="{key}={value}"\n' for key, value in given)
        service = (
            "[Unit]\nDescription=End trmcloud pods that no live run owns\n\n"
            f"[Service]\nType=oneshot\n{exports}ExecStart={line}\n"
        )
        timer = (
            "[Unit]\nDescription=Every few minutes, and after each "
            f"boot\n\n[Timer]\nOnBootSec=1min\nOnUnitActiveSec={every_min}min\nPersistent=true\n\n[Install]\nWantedBy=timers.target\n"
        )
        units = (("service", service), ("timer", timer))
        return Guard(
            "systemd", tuple((str(self._units / f"{UNIT}.{kind}"), text) for kind, text in units)
        )

    def try_out(self, command: str) -> Trial:
        """Look for pods as the timer will, ending none."""
        try:
            answer = subprocess.run(
                [command, "admin", "reap", "--json"],
                env=self.environment,
                capture_output=True,
                text=True,
                errors="replace",
                stdin=subprocess.DEVNULL,
                timeout=_TRIAL_S,
                check=False,
            )
        except OSError as error:
            return Trial(f"{command} cannot be started: {error.strerror}", {})
        except subprocess.TimeoutExpired:
            return Trial(f"it did not answer within {_TRIAL_S:.0f} s", {})
        try:
            rows = json.loads(answer.stdout)["unreachable"]
            return Trial("", {str(row["provider"]): str(row["message"]) for row in rows})
        except (ValueError, KeyError, TypeError, AttributeError):
            said = answer.stderr.strip().splitlines()
            why = said[0].removeprefix("error: ") if said else f"exit code {answer.returncode}"
            return Trial(why, {})

    def install(self, guard: Guard) -> None:
        """Write what was shown, and switch it on."""
        if guard.kind == "cron":
            _write_crontab(_crontab_without_ours() + guard.writes[0][1])
            return
        for path, text in guard.writes:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            write_atomic(Path(path), text)
        _run("systemctl", "--user", "daemon-reload")
        _run("systemctl", "--user", "enable", "--now", f"{UNIT}.timer")

    def installed(self) -> str | None:
        """ "systemd", "cron" or None: which guard is in place."""
        if (self._units / f"{UNIT}.timer").exists():
            return "systemd"
        if shutil.which("crontab") and any(map(_is_ours, _crontab().splitlines())):
            return "cron"
        return None

    def remove(self) -> str | None:
        """Take the guard out; which kind it was."""
        kind = self.installed()
        if kind == "cron":
            _write_crontab(_crontab_without_ours())
        elif kind == "systemd":
            _run("systemctl", "--user", "disable", "--now", f"{UNIT}.timer", may_fail=True)
            for suffix in ("service", "timer"):
                (self._units / f"{UNIT}.{suffix}").unlink(missing_ok=True)
            _run("systemctl", "--user", "daemon-reload", may_fail=True)
        return kind

    def weakness(self, kind: str) -> str:
        """Why a timer of this kind may not run here though it is installed; empty where it will."""
        if kind == "cron":
            if _cron_runs():
                return ""
            return "no cron daemon runs on this machine now: start it (systemctl enable --now cron)"
        try:
            answer = _ask(
                "loginctl", "show-user", getpass.getuser(), "--property=Linger", "--value"
            )
        except (OSError, KeyError):
            return "it may not run while you are logged out: there is no loginctl to check it"
        if answer.stdout.strip() == "yes":
            return ""
        return "it runs only while you are logged in; to change this: loginctl enable-linger"


def _cron_runs() -> bool:
    for path in Path("/proc").glob("[0-9]*/comm"):
        try:
            if path.read_text().strip() in _CRON_DAEMONS:
                return True
        except OSError:  # it has just ended
            continue
    return False


def _available() -> str:
    why = "there is no systemctl"
    if shutil.which("systemctl"):
        if _ask("systemctl", "--user", "show-environment").returncode == 0:
            return "systemd"
        why = "systemd has no manager for this user"
    if shutil.which("crontab"):
        return "cron"
    raise NotSupported(
        f"no timer can be installed on this machine: {why}, and there is no crontab",
        next_step="apt install cron, or run trmcloud admin reap --yes from your own scheduler",
    )


def _crontab() -> str:
    answer = _ask("crontab", "-l")
    return answer.stdout if answer.returncode == 0 else ""


def _is_ours(line: str) -> bool:
    return any(mark in line for mark in _MARKS)


def _crontab_without_ours() -> str:
    lines = [line for line in _crontab().splitlines() if not _is_ours(line)]
    return "".join(line + "\n" for line in lines)


def _write_crontab(text: str) -> None:
    answer = _ask("crontab", "-", content=text)
    if answer.returncode != 0:
        raise ProviderError(
            f"cron rejected the table: {answer.stderr.strip()}", next_step="crontab -e"
        )


def _run(*command: str, may_fail: bool = False) -> None:
    answer = _ask(*command)
    if answer.returncode != 0 and not may_fail:
        raise ProviderError(f"{shlex.join(command)}: {answer.stderr.strip()}")


def _ask(*command: str, content: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, input=content, capture_output=True, text=True, check=False)
