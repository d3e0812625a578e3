"""The way to a cluster's own SSH server: through SkyPilot's connection to the machine.

SkyPilot writes a configuration and a key for each cluster that it lists; it pins no host key. What
lies behind that first hop is ours, and pinned.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path

CONNECT_TIMEOUT_S = 10


def config_of(environ: Mapping[str, str], cluster: str) -> Path:
    """Where SkyPilot keeps a cluster's SSH configuration; there only while it has an address."""
    return Path(environ.get("HOME") or Path.home()) / ".sky" / "generated" / "ssh" / cluster


def others_in(config: Path, cluster: str) -> tuple[str, ...]:
    """The names of a cluster's further machines, as SkyPilot's configuration has them."""
    try:
        text = config.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ()
    worker = re.compile(rf"Host ({re.escape(cluster)}-worker[0-9]{{1,3}})")
    return tuple(
        match[1] for line in text.splitlines() if (match := worker.fullmatch(line.strip()))
    )


def proxy_command(config: Path, cluster: str, machine: str = "") -> str:
    """For ssh's ProxyCommand, to one of the cluster's machines (its first). Nothing of this machine
    is offered to whoever answers."""
    options = {
        "BatchMode": "yes",
        "ConnectTimeout": str(CONNECT_TIMEOUT_S),
        "ControlMaster": "no",
        "ControlPath": "none",
        "ForwardAgent": "no",
        "ForwardX11": "no",
        "IdentityAgent": "none",
        "LogLevel": "ERROR",
        "PermitLocalCommand": "no",
        "ServerAliveInterval": "5",
        "ServerAliveCountMax": "3",
    }
    words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    # SkyPilot writes its path from ~, by which ssh means the account's home, not $HOME.
    key = config.parent.with_name("ssh-keys") / f"{cluster}.key"
    command = shlex.join(["ssh", "-F", str(config), "-i", str(key), *words])
    # ssh expands % in the whole command; the two that it is to expand come last.
    return f"{command.replace('%', '%%')} -W %h:%p {shlex.quote(machine or cluster)}"
