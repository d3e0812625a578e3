"""Programs of this machine that some tests need, and how to install those that are not here.

A test that needs one of them is skipped where it is missing, with a reason that names it. The last
lines of a run count these tests and name the command that installs what is missing.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

_Key = TypeVar("_Key")


@dataclass(frozen=True)
class Tool:
    """``program`` is what is looked for, ``package`` what brings it on Debian and Ubuntu,
    ``told`` a part of the reasons of the tests that are skipped without it."""

    program: str
    package: str
    told: str


TOOLS = (
    Tool("sshd", "openssh-server", r"\bsshd\b|openssh-server"),
    Tool("ssh-keygen", "openssh-client", r"\bssh-keygen\b"),
    Tool("ssh", "openssh-client", r"\bssh\b(?!-)"),
    Tool("rsync", "rsync", r"\brsync\b"),
    Tool("ip", "iproute2", r"\bip command\b|^(.*: )?no ip$"),
    Tool("nsenter", "util-linux", r"\bno nsenter\b"),
    Tool("unshare", "util-linux", r"\bno unshare\b"),
    Tool("setpriv", "util-linux", r"\bsetpriv\b"),
    Tool("mount", "mount", r"\bno mount\b|\bmount command\b"),
    Tool("curl", "curl", r"\bno curl\b"),
    Tool("mkfs.ext4", "e2fsprogs", r"\bmkfs\.ext4\b"),
    Tool("chromium", "chromium", r"\bchromium\b"),
    Tool("strace", "strace", r"\bstrace\b"),
)
"""Sought by a skip's reason in this order; the first that fits counts."""


def find(program: str) -> str | None:
    """The program's path: on PATH alone, so that a test can take it away. None without one."""
    return shutil.which(program)


def last_lines(reasons: Iterable[str]) -> Sequence[str]:
    """How many tests were not run, why, and the command that installs what is missing.

    ``reasons`` holds one line for each test that was skipped. Empty where none was.
    """
    by_tool: dict[Tool, int] = {}
    others: dict[str, int] = {}
    for reason in reasons:
        tool = next((tool for tool in TOOLS if re.search(tool.told, reason)), None)
        if tool is not None:
            by_tool[tool] = by_tool.get(tool, 0) + 1
        else:
            others[reason] = others.get(reason, 0) + 1
    if not by_tool and not others:
        return ()
    counted = [f"{count} for want of {tool.program}" for tool, count in _most_first(by_tool)]
    rest = sum(others.values())
    if rest:
        counted.append(f"{rest} for other reasons")
    whole = sum(by_tool.values()) + rest
    lines = [f"{whole} test{'s were' if whole > 1 else ' was'} not run: {', '.join(counted)}."]
    lines += [f"  {count} × {reason}" for reason, count in _most_first(others)]
    if by_tool:
        packages = " ".join(sorted({tool.package for tool in by_tool}))
        programs = ", ".join(sorted({tool.program for tool in by_tool}))
        lines += [
            f"On Debian and Ubuntu this installs what is missing: apt-get install {packages}",
            f"Elsewhere, install the packages that bring {programs}.",
        ]
    return lines


def _most_first(counts: Mapping[_Key, int]) -> list[tuple[_Key, int]]:
    return sorted(counts.items(), key=lambda item: -item[1])
