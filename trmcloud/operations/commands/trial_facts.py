"""Facts from this machine's files about a trial: files that were not sent, and packages
that no requirements name."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import tomllib

from trmcloud.core.contract.command import Command
from trmcloud.io.children import ReaderStopped, find_program, reader_environment, run_reader
from trmcloud.io.files import is_below
from trmcloud.io.foreign_files import read_part
from trmcloud.operations.commands.trial_checks import (
    TRACKERS,
    Facts,
    MissingFile,
    Observed,
    Tracker,
    plain_name,
    requirement_names,
)
from trmcloud.operations.sending.ignore_rules import IGNORE_NAME
from trmcloud.operations.sending.working_tree import WorkingTree, why_left_out
from trmcloud.pod.job import trmcloud_observer

IN_IMAGES = ("torch", "numpy")
"""The distributions that the default images of rented machines have, with what these require."""
COPY_DIR = "run/work"
"""The copy of the tree in a trial's folder."""
HUB_DIR = "hub"
"""The folder of a trial through which the model hub's caches are read."""
_RESUME_FLAGS = (
    (r"HfArgumentParser|TrlParser|\btrl\.scripts\b", "--resume_from_checkpoint"),
    (r"LightningCLI(?![\s\S]*\brun ?= ?False)", "--ckpt_path"),
)
"""Signs of a framework's own parser of the command line, and its option to resume: transformers'
and TRL's TrainingArguments, Lightning's CLI, which has it in subcommands alone."""
_MOST_PARENTS = 2
_MOST_SOURCES = 500
_MOST_SOURCE_BYTES = 1 << 20
_ASK_S = 60.0
_PYTHON = re.compile(r"python[\d.]*")
_PYTHON_HOMES = ("HOME", "PYTHONUSERBASE", "PYENV_ROOT")
_QUOTED = re.compile(r"""['"]([^'"\n]{1,400})['"]""")
_MODULE = re.compile(r"No module named ['\"]([\w.]+)['\"]")
_REQUIREMENTS = re.compile(r"requirements[\w.-]*\.txt|requirements/[\w.-]+\.txt|environment\.ya?ml")


def facts_of(
    command: Command,
    observed: Observed,
    tree: WorkingTree,
    folder: Path,
    *,
    for_s: float,
    most_bytes: int,
    data: str,
    online: bool,
    shell: Mapping[str, str],
) -> Facts:
    """Return the facts of one trial, for its checks.

    Args:
        folder: the trial's own folder, which still holds its copy of ``tree``.
        data: ``--data``, as it was typed.
        shell: all variables of the shell that it is typed in.
    """
    work = folder / COPY_DIR / tree.folder
    data_dir = str(Path(data).expanduser().absolute()) if data else ""
    outside, own_modules, hub = _outside(observed, tree, folder, data_dir)
    missing = _missing(observed, tree, work)
    texts = _requirements(tree)
    named = requirement_names(texts) | _project_names(tree)
    packages = _packages(observed, named, folder, command.words[0])
    pip = command.pip or next(iter(texts), "")
    if not pip and "pyproject.toml" in tree.names and named:
        pip = "pyproject.toml"
    saved = {name for save in observed.first.saves for name in (save.source, *save.beside)}
    writes = sorted(
        {
            path.path
            for path in observed.paths
            if path.writes and not _is_own(path.path, folder) and path.path not in saved
        }
    )
    trackers = [each for each in TRACKERS if _is_used(each, observed, command)]
    return Facts(
        command=command,
        observed=observed,
        files=len(tree.names),
        for_s=for_s,
        most_bytes=most_bytes,
        data=data,
        missing=missing,
        outside_reads=outside,
        outside_writes=tuple(map(_short, writes)),
        own_modules=own_modules,
        modules=_installed(observed, packages),
        unnamed=_unnamed(observed, tree, packages),
        requirements=pip,
        hub_reads=hub,
        online=online,
        trackers=tuple(each.name for each in trackers),
        has_keys=tuple(each.name for each in trackers if shell.get(each.key)),
    )


def _is_used(tracker: Tracker, observed: Observed, command: Command) -> bool:
    """Whether the command has used a tracker whose mode and key it was not given."""
    names = {tracker.key, *(said.partition("=")[0] for said in tracker.offline)}
    if names & {*command.env, *(word.partition("=")[0] for word in command.words)}:
        return False
    return tracker.name in observed.trackers


def temporary_of(folder: Path) -> Path:
    """Return the folder for temporary files of the trial in ``folder``. Its path is short, as in a
    run: that of a Unix socket holds 107 bytes."""
    return Path(tempfile.gettempdir()) / f"trmcloud{folder.name}"


def _is_own(path: str, folder: Path) -> bool:
    """Whether a path is one of the trial's own."""
    return is_below(path, str(folder)) or is_below(path, str(temporary_of(folder)))


# -- files ---------------------------------------------------------------------------------------


def _outside(
    observed: Observed, tree: WorkingTree, folder: Path, data_dir: str
) -> tuple[tuple[str, ...], tuple[MissingFile, ...], tuple[str, ...]]:
    """(files beyond those to send that were read, modules likewise, entries of the hub's cache)"""
    files: dict[str, None] = {}
    modules: dict[str, MissingFile] = {}
    hub: dict[str, None] = {}
    for path in observed.paths:
        if path.writes or not path.there or (data_dir and is_below(path.path, data_dir)):
            continue
        if is_below(path.path, str(folder / HUB_DIR)):
            name = Path(path.path).relative_to(folder / HUB_DIR).parts[0]
            hub[name.replace("models--", "").replace("datasets--", "").replace("--", "/")] = None
        elif not _is_own(path.path, folder) and os.path.isfile(path.path):
            if path.path.endswith((".py", ".pyc")):
                found = _own_module(Path(path.path), tree.root / tree.folder)
                modules.setdefault(found.name, found)
            else:
                files[_short(path.path)] = None
    return tuple(files), tuple(modules.values()), tuple(hub)


def _own_module(path: Path, here: Path) -> MissingFile:
    """A module that was imported from a folder that is neither sent nor installed."""
    top = path.parent
    while (top.parent / "__init__.py").exists():
        top = top.parent
    name = top.name if (top / "__init__.py").exists() else path.stem
    place = top.parent if (top / "__init__.py").exists() else path.parent
    above = os.path.relpath(place, here)
    if set(above.split(os.sep)) == {".."}:
        return MissingFile(f"module {name}", f"it is in {_short(str(place))}", f"--root {above}")
    return MissingFile(
        f"module {name}", f"it is in {_short(str(place))}",
        f"copy {name} below the working folder, or install it from the requirements",
    )  # fmt: skip


def _missing(observed: Observed, tree: WorkingTree, work: Path) -> tuple[MissingFile, ...]:
    """Files and modules that the command did not find in the copy, and that are here."""
    found: dict[str, MissingFile] = {}
    candidates = [
        os.path.relpath(path.path, work)
        for path in observed.paths
        if not path.there and not path.writes
    ]
    for line in observed.first.last_lines:
        if module := missing_module(line):
            if (about := _missing_module(module, tree)) is not None:
                found.setdefault(about.name, about)
            continue
        for quoted in _QUOTED.findall(line):
            inside = is_below(quoted, str(work)) or not os.path.isabs(quoted)
            if inside and not os.path.exists(work / quoted):
                candidates.append(os.path.relpath(work / quoted, work))
    for name in candidates:
        if (about := _missing_file(Path(name).as_posix(), tree)) is not None:
            found.setdefault(about.name, about)
    return tuple(found.values())


def missing_module(line: str) -> str:
    """The top-level module that a line of a log says is not there; empty where it says none."""
    found = _MODULE.search(line)
    return found[1].partition(".")[0] if found else ""


def _missing_file(name: str, tree: WorkingTree) -> MissingFile | None:
    """``name`` is relative to the folder that the command is started in."""
    path = tree.root / tree.folder / name
    if name in (".", "") or not name.isprintable() or not os.path.exists(path):
        return None
    sent = os.path.normpath(os.path.join(tree.folder, name))
    if sent.startswith("../"):
        if not path.is_file():
            return None
        above = "/".join(part for part in Path(name).parts if part == "..")
        return MissingFile(name, "it is outside the tree", f"--root {above}")
    if path.is_dir():
        if any(each.startswith(f"{sent}/") for each in tree.names):
            return None
        inside = next((entry for entry in sorted(path.rglob("*")) if entry.is_file()), None)
        why = _why(inside, tree) if inside is not None else ""
        return MissingFile(name, why, f"--data {shlex.quote(name)}") if why else None
    why = why_left_out(tree, sent)
    if not why:
        return None
    if sent in tree.keys:
        return MissingFile(name, why, f"add a line !{sent} to {IGNORE_NAME}, if it is not a secret")
    above = Path(name).parent.as_posix()
    fix = f"git add --force {shlex.quote(name)}, or pass its folder with --data"
    return MissingFile(name, why, f"--data {shlex.quote(above)}" if above != "." else fix)


def _missing_module(name: str, tree: WorkingTree) -> MissingFile | None:
    here = tree.root / tree.folder
    for folder in folders_around(here):
        for path in places_of_module(folder, name):
            if not path.exists():
                continue
            if not folder.is_relative_to(tree.root):
                where = f"it is in {_short(str(folder))}, outside the tree"
                above = os.path.relpath(folder, here)
                return MissingFile(f"module {name}", where, f"--root {shlex.quote(above)}")
            inside = path if path.is_file() else next(iter(sorted(path.rglob("*.py"))), path)
            if why := _why(inside, tree):
                return MissingFile(f"module {name}", why, f"send {os.path.relpath(inside, here)}")
            at = path.parent if path.name != "__init__.py" else path.parent.parent
            path_word = shlex.quote(os.path.relpath(at, here))
            return MissingFile(
                f"module {name}", "is not on Python's path",
                f"put env PYTHONPATH={path_word} before the command", is_sent=True,
            )  # fmt: skip
    return None


def _why(path: Path, tree: WorkingTree) -> str:
    """Why a file of the tree is not sent; empty where it is."""
    return why_left_out(tree, path.relative_to(tree.root).as_posix())


def folders_around(root: Path) -> Sequence[Path]:
    """``root`` and the folders around it, up to the top of its repository; of a tree without one,
    those next to it."""
    folders = [root, *root.parents]
    top = next((n for n, folder in enumerate(folders) if (folder / ".git").exists()), None)
    return folders[: _MOST_PARENTS + 1 if top is None else top + 1]


def places_of_module(folder: Path, module: str) -> Iterator[Path]:
    """Where a module may be that is imported from ``folder``."""
    for inner in (folder, folder / "src"):
        yield from (inner / module / "__init__.py", inner / f"{module}.py", inner / module)


def _short(path: str) -> str:
    home = os.path.expanduser("~")
    return "~" + path[len(home) :] if is_below(path, home) else path


# -- packages ------------------------------------------------------------------------------------


def _requirements(tree: WorkingTree) -> dict[str, str]:
    """By name, the text of each file of requirements beside the command; requirements.txt first."""
    here = f"{tree.folder}/" if tree.folder else ""
    below = [name.removeprefix(here) for name in tree.names if name.startswith(here)]
    names = [name for name in below if _REQUIREMENTS.fullmatch(name)]
    return {
        name: text
        for name in sorted(names, key=lambda name: (name != "requirements.txt", name))
        if (text := _text(tree.root / tree.folder / name))
    }


def _project_names(tree: WorkingTree) -> frozenset[str]:
    """The distributions that pyproject.toml names, optional ones and groups included."""
    if "pyproject.toml" not in tree.names:
        return frozenset()
    try:
        made = tomllib.loads(_text(tree.root / "pyproject.toml"))
        project = made.get("project", {})
        groups = [
            project.get("dependencies", ()),
            *project.get("optional-dependencies", {}).values(),
            *made.get("dependency-groups", {}).values(),
        ]
        lines = [line for group in groups for line in group if isinstance(line, str)]
        poetry = made.get("tool", {}).get("poetry", {}).get("dependencies", {})
        lines += [name for name in poetry if name != "python"]
    except (tomllib.TOMLDecodeError, AttributeError, TypeError):
        return frozenset()
    return requirement_names({"pyproject.toml": "\n".join(lines)})


class _Packages(NamedTuple):
    """The installed distributions of the observed Python."""

    of: Mapping[str, Sequence[str]]
    """By module, the distributions that hold it."""
    brought: frozenset[str]
    """Those that the requirements and the images bring."""


def _packages(
    observed: Observed, named: Iterable[str], folder: Path, typed: str
) -> _Packages | None:
    """Ask the interpreter that ran the command; None where it does not answer.

    The command itself reports which one that was. So only an interpreter that the user ``typed``,
    or would by its usual names, is started: the reported one, or a shim of such a name (pyenv's,
    mise's) that answers as the reported one.
    """
    if not observed.modules or not observed.pythons:
        return None
    seen = observed.pythons[0]
    own_word = os.path.abspath(typed) if os.path.sep in typed else find_program(typed)
    names = ("python", "python3", *([typed] if _PYTHON.fullmatch(typed) else []))
    shims = [found for name in dict.fromkeys(names) if (found := find_program(name)) is not None]
    direct = seen in (own_word, sys.executable, *shims)
    question = {"modules": observed.modules, "named": [*named, *IN_IMAGES]}
    # Where this user's packages are; the interpreter may be one that the tree brought.
    own = {name: os.environ[name] for name in _PYTHON_HOMES if name in os.environ}
    for program in [seen] if direct else shims:
        try:
            ended = run_reader(
                [program, str(Path(trmcloud_observer.__file__))],
                most_s=_ASK_S,
                folder=folder,
                environment=reader_environment(also=own),
                given=json.dumps(question).encode(),
            )
            said = json.loads(ended.out)
            if direct or said["python"] == seen:
                return _Packages(said["of"], frozenset(said["brought"]))
        except (OSError, ValueError, ReaderStopped, KeyError, TypeError):
            continue
    return None


def _installed(observed: Observed, packages: _Packages | None) -> tuple[str, ...]:
    """The modules that were imported and not only tried, where that is known."""
    if packages is None or not any(packages.of.values()):
        return observed.modules
    return tuple(name for name in observed.modules if packages.of.get(name))


def _unnamed(
    observed: Observed, tree: WorkingTree, packages: _Packages | None
) -> tuple[str, ...] | None:
    """The distributions that the tree's own sources import, that were imported, and that neither
    its requirements nor an image brings; None: not known."""
    if packages is None:
        return None if observed.modules else ()
    starts = tuple({"", "src/", f"{tree.folder}/" if tree.folder else ""})
    tops = {
        name.removeprefix(start).partition("/")[0].removesuffix(".py")
        for name in tree.names
        for start in starts
        if name.startswith(start)
    }
    written = _written_imports(tree, observed.sources)
    found = (
        plain_name(holders[0])
        for name in observed.modules
        if name in written
        and name not in tops
        and (holders := packages.of.get(name))
        and not packages.brought & set(holders)
    )
    return tuple(dict.fromkeys(found))


def _written_imports(tree: WorkingTree, sources: Sequence[str]) -> frozenset[str]:
    """Top-level modules that those sources of the tree import anywhere."""
    found: set[str] = set()
    for name in sources[:_MOST_SOURCES]:
        try:
            made = ast.parse(_text(tree.root / name))
        except (SyntaxError, ValueError):
            continue
        for node in ast.walk(made):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.partition(".")[0])
    return frozenset(found)


def resume_flag(tree: WorkingTree, words: Sequence[str]) -> str:
    """The option by which the framework of the tree's command line resumes from a checkpoint;
    empty where none is known."""
    said = " ".join(words)
    sources = [name for name in tree.names if name.endswith(".py")][:_MOST_SOURCES]
    texts = (_text(tree.root / name) for name in sources if Path(name).name in said)
    named = "\n".join((said, *texts))
    return next((flag for sign, flag in _RESUME_FLAGS if re.search(sign, named)), "")


def _text(path: Path) -> str:
    return read_part(path, _MOST_SOURCE_BYTES).decode("utf-8", "replace")


def shadow(source: Path, target: Path, most: int) -> int:
    """Make ``target`` show the files of ``source`` as links in folders of its own, so that they are
    read there and nothing is written to ``source``; return the number of files, ``most`` at the
    most. Links that lead to a relative name stay as they are."""
    count = 0
    for folder, folders, files in os.walk(source):
        here = target / os.path.relpath(folder, source)
        try:
            here.mkdir(parents=True, exist_ok=True)
            for name in files:
                if count >= most:
                    return count
                path = Path(folder) / name
                leads = os.readlink(path) if path.is_symlink() else str(path)
                os.symlink(leads if not os.path.isabs(leads) else str(path), here / name)
                count += 1
        except OSError:
            continue
        folders[:] = [name for name in folders if not (Path(folder) / name).is_symlink()]
    return count
