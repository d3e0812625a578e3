"""Whether a project's packages can be installed together, asked of pip before anything is rented.

pip chooses for Linux on x86-64, without installing anything (``pip install --dry-run``), and takes
no package that it would have to build: none of a package's code is run here. What it cannot say is
no refusal: without a network, or of a package that exists as sources alone, the answer is left to
the machine.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from trmcloud.app.requirement_files import Line, Packages, takes
from trmcloud.core.contract.pod_contract import ENV_INSTALL_PREFIX
from trmcloud.core.errors import DataError
from trmcloud.core.text import one_line
from trmcloud.core.values import dataclass

USUAL_PYTHON = "3.12"
"""Of a machine whose Python is not known here."""
_PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
_WITHIN_S = 90.0
_NO_NETWORK = re.compile(
    r"Temporary failure in name resolution|Name or service not known|Failed to establish|"
    r"ConnectTimeout|Connection (refused|reset|broken)|NewConnectionError|ProxyError|"
    r"Network is unreachable|Read timed out|Max retries exceeded|No module named pip"
)
_NOT_FOUND = re.compile(r"No matching distribution found for (?P<wanted>[^\n]+)")
_OTHER_PYTHON = re.compile(r"different python version: [^;]*?(?P<needs>Requires-Python [^\n;]+)")
_CONFLICT = re.compile(r"The conflict is caused by:\n(?P<rows>(?:[ ]{4}[^\n]+\n)+)")


@dataclass(frozen=True)
class ResolvedPackages:
    """``versions`` is ``name==version`` of each package that would be installed; ``unknown`` says
    why they are not known here."""

    versions: tuple[str, ...] = ()
    unknown: str = ""


Pip = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]
"""Runs pip of this Python with these words."""


def run_pip(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """
    Raises:
        subprocess.TimeoutExpired: it takes too long. OSError: it cannot be started.
    """
    length = len(ENV_INSTALL_PREFIX)
    for_machine = {k[length:]: v for k, v in os.environ.items() if k.startswith(ENV_INSTALL_PREFIX)}
    return subprocess.run(
        [sys.executable, "-P", "-m", "pip", *words],
        env={**os.environ, **for_machine},  # the index that the machine is to ask
        capture_output=True,
        text=True,
        timeout=_WITHIN_S,
        stdin=subprocess.DEVNULL,
    )


def resolve(
    packages: Packages, folder: Path, python: str = "", pip: Pip = run_pip
) -> ResolvedPackages:
    """Ask pip whether ``packages`` can be installed together.

    Args:
        folder: where the command starts; paths in the list are below it.
        python: the version of the machine's Python; empty where it is not known here.

    Raises:
        DataError: they cannot, or the project does not take this Python; it names the line.
    """
    _check_python(packages, python)
    target = python or _python_for(packages)
    # A path is the project's own, and a repository is built: neither is looked at here.
    asked = [line for line in packages.lines if _is_named(line)]
    with tempfile.TemporaryDirectory(prefix="trmcloud-pip-") as place:
        report = Path(place) / "report.json"
        words = ["install", "--dry-run", "--ignore-installed", "--no-input"]
        words += ["--disable-pip-version-check", "--retries", "1", "--timeout", "10"]
        words += ["--only-binary", ":all:", "--python-version", target, "--implementation", "cp"]
        words += [word for platform in _PLATFORMS for word in ("--platform", platform)]
        words += ["--target", str(Path(place) / "target"), "--report", str(report)]
        listed, constraints = Path(place) / "packages.txt", Path(place) / "constraints.txt"
        kept = [line for line in packages.options if not _chooses_builds(line)]
        listed.write_text("".join(f"{line.text}\n" for line in (*kept, *asked)))
        words += ["-r", str(listed)]
        if packages.constraints:
            constraints.write_text(packages.constraints_text())
            words += ["-c", str(constraints)]
        if not asked:
            return ResolvedPackages(unknown="it names only paths and repositories")
        try:
            done = pip(words)
        except (subprocess.TimeoutExpired, OSError):
            return ResolvedPackages(unknown="the index did not answer in time")
        if done.returncode == 0:
            return ResolvedPackages(_versions(report.read_text(encoding="utf-8")))
    return ResolvedPackages(unknown=_why(f"{done.stdout}\n{done.stderr}", packages, python, pip))


def _why(said: str, packages: Packages, python: str, pip: Pip) -> str:
    """Return why nothing is known here.

    Raises:
        DataError: it is known that the packages cannot be installed.
    """
    conflict = _CONFLICT.search(said)
    if conflict is not None:
        rows = [row.strip() for row in conflict["rows"].splitlines()]
        raise DataError(
            "its packages conflict: " + one_line("; ".join(rows))[:300],
            where=_place_of(rows[0], packages),
            next_step="allow another version of one of them",
        )
    if _NO_NETWORK.search(said):
        return "the index cannot be reached"
    missing = _NOT_FOUND.search(said)
    if missing is None:
        return one_line(said.strip().splitlines()[-1] if said.strip() else "pip gave no reason")[
            :200
        ]
    wanted = re.sub(r"\s*\(from [^)]*\)$", "", missing["wanted"]).strip()
    try:
        requirement = Requirement(wanted)
    except InvalidRequirement:
        return f"pip does not know {one_line(wanted)[:80]}"
    there = _versions_of(requirement.name, pip)
    where = _place_of(wanted, packages)
    if there is None:
        return f"the index does not list the versions of {requirement.name}"
    if not there:
        raise DataError(
            f"there is no package {requirement.name} on the index",
            where=where,
            next_step="use its name on the index; for a repository: name @ git+https://…",
        )
    fitting = list(requirement.specifier.filter(there, prereleases=True))
    if not fitting:
        raise DataError(
            f"there is no {wanted} on the index; the newest is {max(there)}",
            where=where,
            next_step=f"{requirement.name}=={max(there)}, or a range that includes it",
        )
    if python and (other := _OTHER_PYTHON.search(said)) is not None:
        raise DataError(
            f"{wanted} has no build for Python {python}: {one_line(other['needs'])[:80]}",
            where=where,
            next_step="use another version, or an image with another Python",
        )
    return f"{requirement.name} has no prebuilt package, and is built on the machine"


def _check_python(packages: Packages, python: str) -> None:
    """
    Raises:
        DataError: the machine's Python is none that the project takes.
    """
    if not packages.python or not python:
        return
    if not takes(packages.python, python):
        raise DataError(
            f"the project needs Python {packages.python}, but the machine has {python}",
            where=packages.python_where,
            next_step="use an --image with that Python; on this machine, an environment with it",
        )


def _python_for(packages: Packages) -> str:
    """Return the usual Python, or the newest one below it that the project takes."""
    for minor in range(int(USUAL_PYTHON.partition(".")[2]), 7, -1):
        if takes(packages.python, f"3.{minor}"):
            return f"3.{minor}"
    return USUAL_PYTHON


def _is_named(line: Line) -> bool:
    try:
        requirement = Requirement(line.text.split(" --")[0].strip())
    except InvalidRequirement:
        return False
    return requirement.url is None


def _chooses_builds(line: Line) -> bool:
    return line.text.startswith(("--only-binary", "--no-binary", "--require-hashes"))


def _versions_of(name: str, pip: Pip) -> tuple[Version, ...] | None:
    """Return the versions of a package that the index has, sources included; none: there is no such
    package. None: it cannot be asked."""
    try:
        done = pip(["index", "versions", name, "--disable-pip-version-check", "--pre"])
    except (subprocess.TimeoutExpired, OSError):
        return None
    if done.returncode:
        is_absent = "No matching distribution" in done.stderr
        return () if is_absent and not _NO_NETWORK.search(done.stderr) else None
    listed = re.search(r"Available versions: (.+)", done.stdout)
    versions = []
    for text in listed[1].split(",") if listed is not None else ():
        try:
            versions.append(Version(text.strip()))
        except InvalidVersion:
            continue
    return tuple(versions)


def _place_of(wanted: str, packages: Packages) -> str:
    """Return the line that a message of pip is about; the file's name where none is found."""
    for line in packages.lines:
        name = re.split(r"[\s\[=<>!~;@]", line.text, maxsplit=1)[0]
        if name and re.search(rf"(?i)\b{re.escape(name)}\b", wanted):
            return line.where
    return packages.file


def _versions(report: str) -> tuple[str, ...]:
    found = []
    for item in json.loads(report).get("install", ()):
        about = item.get("metadata", {})
        found.append(f"{canonicalize_name(about['name'])}=={about['version']}")
    return tuple(sorted(found))
