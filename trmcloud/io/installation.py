"""How trmcloud was installed here, and the commands that add an extra to it or bring it up to date.

Nothing is published on a package index, so a hint names the same source that this installation
came from: the clone, the wheel's file, or the tool that made its environment.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

# Others are imported where they are needed: every command loads this module, and few give a hint.

_NAME = "trmcloud"
_RECEIPTS = {"uv": "uv-receipt.toml", "pipx": "pipx_metadata.json"}
"""Files in an environment by which its maker is known."""


class Installation(NamedTuple):
    """``source``: the clone's folder where ``is_editable``, else what to put behind the ``@`` of a
    requirement; empty where it is not known. ``tool``: ``uv`` or ``pipx``, which made the
    environment for trmcloud alone; ``extras``: those that it was installed with."""

    source: str = ""
    is_editable: bool = False
    tool: str = ""
    extras: frozenset[str] = frozenset()


def installation(prefix: Path | None = None) -> Installation:
    """Return how trmcloud was installed in this environment, or the one at ``prefix``."""

    import json
    from importlib.metadata import PackageNotFoundError, distribution

    folder = Path(sys.prefix) if prefix is None else prefix
    try:
        told = json.loads(distribution(_NAME).read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError, OSError):
        told = {}
    source, is_editable = _source_of(told if isinstance(told, dict) else {})
    for tool, receipt in _RECEIPTS.items():
        if (folder / receipt).is_file():
            return Installation(source, is_editable, tool, _extras_of(folder / receipt))
    return Installation(source, is_editable)


def install_command(*extras: str, made: Installation | None = None) -> str:
    """Return the command that adds ``extras`` to this installation."""

    import shlex

    here = installation() if made is None else made
    wanted = ",".join(sorted({*extras, *here.extras}))
    if here.is_editable:
        what = f"-e {shlex.quote(f'{here.source}[{wanted}]')}"
    elif here.source:
        what = shlex.quote(f"{_NAME}[{wanted}] @ {here.source}")
    else:
        return f"install it again from its source, as '{_NAME}[{wanted}]'"
    if here.tool:
        return f"{here.tool}{' tool' if here.tool == 'uv' else ''} install --force {what}"
    return f"{_pip_install()} {what}"


def update_command(made: Installation | None = None) -> str:
    """Return what brings trmcloud to its newest version."""

    import shlex

    here = installation() if made is None else made
    if here.is_editable:
        return f"git -C {shlex.quote(here.source)} pull"
    return "install a newer trmcloud"


def _source_of(told: dict[str, Any]) -> tuple[str, bool]:
    """(source, whether it is editable) by ``direct_url.json``, as PEP 610 has it."""

    from urllib.parse import unquote, urlsplit

    url = told.get("url")
    if not isinstance(url, str) or not url:
        return "", False
    folder = told.get("dir_info")
    if isinstance(folder, dict) and folder.get("editable"):
        return unquote(urlsplit(url).path), True
    version = told.get("vcs_info")
    if isinstance(version, dict):
        wanted = version.get("requested_revision") or version.get("commit_id", "")
        return f"{version.get('vcs', 'git')}+{url}{f'@{wanted}' if wanted else ''}", False
    return url, False


def _extras_of(receipt: Path) -> frozenset[str]:
    """The extras that a tool's receipt names for trmcloud."""

    import json

    import tomllib

    try:
        text = receipt.read_text(encoding="utf-8")
        if receipt.suffix == ".toml":
            rows = tomllib.loads(text)["tool"]["requirements"]
            return frozenset(
                extra for row in rows if row["name"] == _NAME for extra in row.get("extras", ())
            )
        named = str(json.loads(text)["main_package"]["package_or_url"])
    except (OSError, ValueError, KeyError, TypeError):
        return frozenset()
    found = re.search(r"\[([^\]]*)\]", named)
    return frozenset(each.strip() for each in found[1].split(",")) if found else frozenset()


def _pip_install() -> str:
    """``pip install`` of this very environment, as it can be typed."""
    import shlex
    import shutil
    from importlib.machinery import PathFinder

    python = shlex.quote(sys.executable)
    # By its path: asked as an import, setuptools' finder would give this process up to pip, and
    # torch.compile, which imports setuptools, would fail in it from then on.
    if PathFinder.find_spec("pip") is None:  # as where uv made it
        return f"uv pip install --python {python}"
    found = shutil.which("pip")
    if found and os.path.realpath(Path(found).parent) == os.path.realpath(
        Path(sys.executable).parent
    ):
        return "pip install"
    return f"{python} -m pip install"
