"""A command's working folder and the packages that it asked for."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import tarfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from trmcloud.core.contract.command import (
    CODE_NAME,
    CONSTRAINTS_NAME,
    FOLDERS_NAME,
    PACKAGES_NAME,
    PINS_NAME,
    Command,
    CommandSource,
    is_inside,
)
from trmcloud.core.contract.command_terms import CheckpointTree
from trmcloud.io.archives import open_tar
from trmcloud.pod.job.shelf import first_of, on_disk
from trmcloud.pod.job.watcher import why_half
from trmcloud.pod.machine import packages

# The command's working folder: a copy of the tree that was sent, made once for each phase.

MOST_BYTES = 4 << 30
MOST_FILES = 100_000


def unpack(code_dir: Path, work: Path) -> None:
    """Make ``work`` of ``code.tar``: regular files alone, names that stay inside, up to a size. One
    that is there already, of an attempt before, stays as it is.

    Raises:
        ValueError: the archive holds something else. OSError: it cannot be read or written.
    """
    if work.is_dir():
        return
    making = work.with_name(f".{work.name}.making")
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir(parents=True)
    count = size = 0
    try:
        with open_tar(code_dir / CODE_NAME) as archive:
            for member in archive:
                count, size = count + 1, size + max(0, member.size)
                if not member.isreg() or not is_inside(member.name):
                    raise ValueError(f"{member.name!r:.80} is no plain file of the working tree")
                if count > MOST_FILES or size > MOST_BYTES:
                    raise ValueError("the working tree is larger than any that is sent")
                source = archive.extractfile(member)
                assert source is not None  # a regular file has one
                target = making / member.name
                target.parent.mkdir(parents=True, exist_ok=True)
                mode = 0o755 if member.mode & 0o100 else 0o644
                with source, open(os.open(target, os.O_WRONLY | os.O_CREAT, mode), "wb") as file:
                    shutil.copyfileobj(source, file, 1 << 20)
    except tarfile.TarError as error:
        raise ValueError(f"the working tree's archive cannot be read: {error}") from None
    os.rename(making, work)


def import_roots(tree: Path) -> list[str]:
    """Return the folders of a repository that its own packages are imported from, as by an editable
    install of it."""
    return [str(path) for path in (tree, tree / "src") if path.is_dir()]


def lay_data(work: Path, data: str, named: str) -> None:
    """Put ``--data`` under its name in the working tree, where it named a part of that."""
    if not named or not is_inside(named) or not data:
        return
    place = work / named
    if os.path.lexists(place):
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(data)


def put_back(copies: Path, root: Path, tree: CheckpointTree, *, is_latest: bool = True) -> Path:
    """Move the verified copies of a checkpoint's files to their own names below ``root``; return
    the file or folder that they are.

    Where that is ``root`` itself, or leads out of it by a link, they stay where they are.

    Args:
        copies: what ``restore`` has written.
        root: the working folder, or a place outside it that the command's checkpoints are in.
        tree: the checkpoint's names.
        is_latest: it takes the place of what an attempt before may have left half written there;
            another checkpoint is put back where files of it are missing there, or seen to be cut
            off.

    Raises:
        OSError: it cannot be moved.
    """
    place = root / os.path.normpath(tree.source)
    name = on_disk(tree.source.rpartition("/")[2])
    here = copies / (on_disk(first_of(tree)) if tree.is_file else name)
    if place == root or not place.parent.resolve().is_relative_to(root.resolve()):
        return here
    if tree.is_file:
        moves = {on_disk(file.path): place.parent / on_disk(file.path) for file in tree.files}
        moved = moves[on_disk(first_of(tree))]
    elif is_latest:
        moves, moved = {name: place}, place
    else:
        below = (on_disk(file.path) for file in tree.files)
        moves, moved = {f"{name}/{path}": place / path for path in below}, place
    if not is_latest and all(each.is_file() and not why_half(each) for each in moves.values()):
        return moved
    for path, target in moves.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)
        shutil.move(copies / path, target)
    return moved


LATEST_NAME = "latest"
"""DeepSpeed's file with the name of its newest checkpoint, by which it finds that again."""


def note_latest(place: Path, layout: str) -> None:
    """Have DeepSpeed find the checkpoint that was put back at ``place``, where its own note is
    missing or names another one that is not there.

    Raises:
        OSError: it cannot be written.
    """
    note = place.with_name(LATEST_NAME)
    if layout != "deepspeed" or note.is_symlink():
        return
    named = note.read_text(errors="replace")[:400].strip() if note.is_file() else ""
    if not named or not is_inside(named) or not (note.parent / named).is_dir():
        note.write_text(place.name)


# The packages of ``--pip``, installed into a virtual environment of the run before the command
# starts.
#
# It sees the packages of the machine's image, and keeps the image's torch with all that is built
# for it, unless the project's own list asks for another version: to install torch anew is gigabytes
# and minutes of rent, and another build may not fit the machine's driver.

_LOG_BYTES = 400
_MADE_NAME = "made.json"
"""In an environment: it is whole. Its scripts name their Python by its path, so that it cannot be
made elsewhere and moved."""
_OF_TORCH = re.compile(r"torch|torchvision|torchaudio|triton|pytorch-triton.*|nvidia-.*-cu\d+")
_INSPECT = """
import importlib.metadata as m, json, site, sys
scripts, versions = {}, {}
for found in m.distributions():
    name = (found.metadata["Name"] or "").lower().replace("_", "-")
    if name and name not in versions:
        versions[name] = found.version
        for point in found.entry_points:
            if point.group == "console_scripts":
                scripts.setdefault(point.name, point.value)
sites = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
python = sys.version.split()[0]
print(json.dumps({"versions": versions, "scripts": scripts, "sites": sites, "python": python}))
"""
_INSPECT_S = 60.0
_SCRIPT = """#!{python}
import sys
from {module} import {name}
sys.exit({call}())
"""


def install(
    code_dir: Path,
    work: Path,
    named: str,
    target: Path,
    deadline_at: float,
    environ: Mapping[str, str],
) -> str:
    """Make the environment ``target`` once, for every attempt after it, by the Python that the
    command would find first.

    Args:
        code_dir: has the list of packages, as it was read where the command was typed.
        work: where the command starts; paths in the list are below it.
        named: the file that --pip named, for messages.
        deadline_at: epoch seconds by which it must be there.
        environ: the variables that builds and ``${NAME}`` in the list see: the command's, not the
            agent's.

    Returns:
        What the command gets otherwise than planned, and its torch; empty where there is nothing to
        say.

    Raises:
        ValueError: there is no Python, or it could not be installed in time.
    """
    if (target / _MADE_NAME).exists():
        return ""
    shutil.rmtree(target, ignore_errors=True)
    wanted = code_dir / PACKAGES_NAME
    if not wanted.is_file():
        raise ValueError(f"--pip {named}: its list of packages was not sent")
    base = shutil.which("python") or shutil.which("python3")
    if base is None:
        raise ValueError("--pip: there is no Python here")
    until = min(time.monotonic() + 3600.0, time.monotonic() + deadline_at - time.time())
    run = functools.partial(_run, environ, named, until)
    run([base, "-m", "venv", "--without-pip", "--system-site-packages", str(target)])
    python, site = str(target / "bin" / "python"), Path(packages.site_of(target))
    image = json.loads(run([base, "-c", _INSPECT]))
    # Where the image's Python is itself of an environment, the new one sees its packages by this.
    folders = [work / folder for folder in _lines(code_dir / FOLDERS_NAME)]
    (site / "trmcloud.pth").write_text("".join(f"{row}\n" for row in (*folders, *image["sites"])))
    pip = [python, "-m", "pip"]
    kept, told = _torch_to_keep(pip, wanted, image["versions"], work, named, run)
    fixed = target / CONSTRAINTS_NAME
    rows = [f"{name}=={version}" for name, version in sorted(kept.items())]
    # What the image has stays as pip finds it, and what its torch needs: the plan knows neither.
    planned = {pin.partition("==")[0]: pin for pin in _lines(code_dir / PINS_NAME)}
    pins = [
        pin
        for name, pin in planned.items()
        if name not in image["versions"] and not (kept and _OF_TORCH.fullmatch(name))
    ]
    fixed.write_text("\n".join((*rows, *pins)))
    words = [*pip, "install", "--no-input", "--disable-pip-version-check", "-r", str(wanted)]
    words += ["-c", str(fixed)]
    if (code_dir / CONSTRAINTS_NAME).is_file():
        words += ["-c", str(code_dir / CONSTRAINTS_NAME)]
    try:
        run(words, work)
    except ValueError as error:
        if not pins or not re.search("ResolutionImpossible|No matching distribution", str(error)):
            raise
        fixed.write_text("\n".join(rows))
        run(words, work)
        other = "other versions than the plan's: those do not suit this image"
        told = f"{other}; {told}" if told else other
    _lay_scripts(target / "bin", python, image["scripts"])
    (target / _MADE_NAME).write_text(json.dumps({"kept": kept}))
    return told


def _run(
    environ: Mapping[str, str],
    named: str,
    until: float,
    words: list[str],
    cwd: Path | None = None,
) -> str:
    """Return its output.

    Raises:
        ValueError: it failed, or was not done by ``until`` (of the steady clock, s).
    """
    environment = packages.install_environment(environ, Path(words[0]))
    environment.pop("PYTHONPATH", None)  # what is installed there is not the command's
    if "--isolated" in words:
        environment["PIP_CONFIG_FILE"] = os.devnull  # the machine's own, too
    left_s = max(1.0, until - time.monotonic())
    try:
        done = subprocess.run(
            words, env=environment, cwd=cwd, capture_output=True, text=True, timeout=left_s
        )
    except subprocess.TimeoutExpired:
        raise ValueError(f"--pip {named}: it could not be installed in time") from None
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split())[-_LOG_BYTES:]
        raise ValueError(f"--pip {named}: {said}")
    return done.stdout


def _torch_to_keep(
    pip: list[str],
    wanted: Path,
    versions: Mapping[str, str],
    work: Path,
    named: str,
    run: Callable[[list[str], Path], str],
) -> tuple[dict[str, str], str]:
    """Return the image's torch and what is built for it, by name with version, and a line about
    them; none where the project asks for another one."""
    family = {name: each for name, each in versions.items() if _OF_TORCH.fullmatch(name)}
    if "torch" not in family:
        return {}, ""
    for line in _lines(wanted):
        name = re.split(r"[\s\[=<>!~;@]", line.lower().replace("_", "-"), maxsplit=1)[0]
        if name not in family:
            continue
        # Without an index pip can only say whether what is there will do.
        words = [*pip, "--isolated", "install", "--no-index", "--no-deps"]
        words += ["--disable-pip-version-check", line]
        try:
            run(words, work)
        except ValueError:
            return {}, f"{named} asks for {line}: the image's {name} {family[name]} is not used"
    return family, f"the image's torch {family['torch']} is kept"


def _lines(path: Path) -> list[str]:
    try:
        rows = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    return [row for row in rows if row and not row.startswith("#")]


def _lay_scripts(folder: Path, python: str, scripts: Mapping[str, str]) -> None:
    """Put the commands of the image's packages (``torchrun``) beside those that were installed: the
    image's own name its Python, which does not see what was installed."""
    for name, point in scripts.items():
        module, _, function = point.partition(" ")[0].partition(":")
        path = folder / name
        if not function or "/" in name or path.exists():
            continue
        first = function.partition(".")[0]
        text = _SCRIPT.format(python=python, module=module, name=first, call=function)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o755), "w") as file:
            file.write(text)


# What a command is run with, for the manifests of its checkpoints.

_MOST_LISTED = 2000


def provenance_of(command: Command, environment: Mapping[str, str]) -> dict[str, object]:
    """Return the words of ``command``, the hashes of what was sent for it, and the Python and the
    packages that it finds first in ``environment``. Takes about a second."""
    source = command.source or CommandSource()
    about: dict[str, object] = {
        "command": list(command.words),
        "code_sha256": source.code_sha256,
        "git_commit": source.git_commit,
        "dirty": source.is_dirty,
        "data_sha256": source.data_sha256,
    }
    path = environment.get("PATH")
    python = shutil.which("python", path=path) or shutil.which("python3", path=path)
    if python is None:
        return about
    try:
        done = subprocess.run(
            [python, "-c", _INSPECT],
            env=dict(environment),
            capture_output=True,
            text=True,
            timeout=_INSPECT_S,
        )
        found = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return about
    listed = sorted(f"{name}=={version}" for name, version in found["versions"].items())
    text = "".join(f"{each}\n" for each in listed)
    return about | {
        "python": found["python"],
        "torch": found["versions"].get("torch", ""),
        "packages_sha256": hashlib.sha256(text.encode()).hexdigest(),
        "packages": listed[:_MOST_LISTED],
    }
