"""What git lists of a folder, and whether its files are those of the commit that is checked out.

The repository may be another party's, and its configuration may name programs. So only
``rev-parse`` and ``ls-files`` run on it, apart from the user's keys, with all configuration off but
the repository's own; ``status`` and ``diff`` would start its filters. The user's own ignore rules
and trusted folders are read first, away from the repository, and passed on by name.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import shlex
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import field
from pathlib import Path
from typing import NamedTuple

from trmcloud.core.errors import DataError
from trmcloud.core.values import Value, replace
from trmcloud.io.children import ReaderStopped, find_program, reader_environment, run_reader
from trmcloud.io.files import is_below, open_regular

_MOST_S = 30.0
"""For all answers about a folder; a command may list it twice."""
_MOST_CPU_S = 8
"""For one answer."""
_MOST_BYTES = 256 << 20
_DEEPEST, _MOST_FOLDERS = 256, 200_000
"""Of an index that is compared with its commit."""
_OPTIONS = (
    "--no-pager", "--no-optional-locks", "--no-replace-objects",
    "-c", "core.fsmonitor=", "-c", "safe.bareRepository=explicit", "-c", "core.hooksPath=/dev/null",
    "-c", "core.untrackedCache=false",
)  # fmt: skip
_CLOSED = {
    "GIT_CONFIG_NOSYSTEM": "1", "GIT_ATTR_NOSYSTEM": "1", "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": "none",
    "LC_ALL": "C",
}  # fmt: skip
"""An object that is missing is not fetched: ``GIT_ALLOW_PROTOCOL`` forbids it to versions that do
not know ``GIT_NO_LAZY_FETCH``. Messages are in English: refusals are told apart by them."""
_ASKED = r"^(core\.excludesfile|safe\.directory|includeif\..*\.path)$"
_MOST_INCLUDED = 20
_READ_BY_GIT = (
    "HEAD", "index", "config", "config.worktree", "packed-refs", "shallow", "commondir", "info",
    "info/exclude", "info/attributes", "info/sparse-checkout", "info/grafts", "logs", "refs",
    "objects", "objects/info", "objects/info/alternates", "objects/pack",
)  # fmt: skip
"""Of a .git folder, by rev-parse and ls-files."""
_WALKED_BY_GIT, _MOST_FILES = ("refs", "reftable", "objects"), 1_000_000
_MOST_CONFIG_BYTES = 1 << 20
_GIT_FILE, _MOST_GIT_FILE_BYTES = "gitdir: ", 1 << 13
_INCLUDES = re.compile(r"(?i)\[\s*include")
_NAMED = re.compile(r"(?im)(?:^|\])\s*(path|excludesfile|attributesfile)\s*=\s*(.*?)\s*$")
_PLAIN_PATH = re.compile(r"[\w./@+~ -]+")
_UNREAD = re.compile(r"could not open directory '(.+?)/?':")
_LINK, _SUBMODULE, _EXECUTABLE = "120000", "160000", "100755"
_FILES = (stat.S_IFREG, stat.S_IFDIR)
_SHA1_DIGITS = 40


class GitStopped(DataError):
    """Git exceeded its limit of time or output; asked again, it would again."""


class Entry(NamedTuple):
    """A file in git's index: its mode in octal digits, and the id of its content."""

    mode: str
    id: str
    is_skipped: bool
    """Left out of the working folder by a sparse checkout."""


class GitList(Value):
    """Git's list of a folder; names are relative to it."""

    top: Path
    """The folder of the repository's ``.git``."""
    tracked: Mapping[str, Entry]
    others: tuple[str, ...]
    """Neither tracked nor ignored."""
    commit: str
    """Empty where there is none yet."""
    is_staged: bool
    """Whether the index of the folder, or of a submodule, differs from the commit."""
    unlisted: Mapping[str, str] = field(default_factory=dict)
    """The submodules and clones whose files are not listed, each with the reason and what to do."""
    unread: tuple[str, ...] = ()
    """Folders that git could not read."""


def git_list(
    root: Path, leaves_out: Callable[[str], bool] = lambda _: False, *, is_nested: bool = False
) -> GitList | None:
    """Return git's list of ``root`` with its submodules and the clones in it; None where there is
    no repository around it, or no git.

    Args:
        leaves_out: whether a file below ``root`` is left out anyway.
        is_nested: ``root`` itself must be the top of a repository.

    Raises:
        DataError: git refuses the repository, or does not answer: its ignore rules are not known.
    """
    root = Path(os.path.realpath(root))
    tops = _candidates(root)[: 1 if is_nested else None]
    if not tops or find_program("git") is None:
        return None
    program = find_program("git", outside=root)
    if program is None:
        raise DataError(
            "the only git on PATH is in the folder that is to be sent: it is not run",
            where=str(root),
            next_step="cd to the folder of the script, or install git elsewhere",
        )
    until = time.monotonic() + _MOST_S
    with tempfile.TemporaryDirectory(prefix="trmcloud-git-") as made:
        ignores, trusted = _settings_of_user(program, Path(made))
        config = Path(made) / "config"
        config.write_bytes(
            b"[safe]\n" + b"".join(b"\tdirectory = %s\n" % _quoted(each) for each in trusted)
        )
        for top in tops:
            _require_own_files(top)
            git = _Git(program, root, top, config, until)
            # The nearest folder whose .git is a repository counts, as for git itself.
            if git.ask("rev-parse", "--git-dir", may_be_none=True) is not None:
                found = _listed(git, [_existing(top, each) for each in ignores])
                return _with_nested(root, found, leaves_out)
    raise DataError(
        "there is a .git here that git cannot read: the repository's ignore rules are not known",
        where=str(tops[0]),
        next_step=f"repair it, or move {shlex.quote(str(tops[0] / '.git'))} away",
    )


def _require_own_files(top: Path) -> None:
    """See that git reads no file outside the repository for the one in ``top``.

    Raises:
        DataError: its .git, or a file of it, is a link that leads elsewhere, or its configuration
            names a file of another place.
    """
    for git in _repositories(top):
        paths = [git / name for name in _READ_BY_GIT]
        paths += git.glob("sharedindex.*")  # of a split index
        for path in itertools.chain(paths, *(_odd_below(git / name) for name in _WALKED_BY_GIT)):
            _require_own_file(path, git)
        for name in ("config", "config.worktree"):
            if not _stays_in(git / name, top, _place(git, top)):
                raise _outside(git / name, "it is too large, or names a file of another place")


def _odd_below(folder: Path) -> Iterator[Path]:
    """Yield the links, pipes and devices below a folder, at any depth.

    Raises:
        DataError: it holds too much to be looked through.
    """
    waiting, looked = [str(folder)], 0
    while waiting:
        with suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                looked += 1
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                elif not entry.is_file(follow_symlinks=False):
                    yield Path(entry.path)
        if looked > _MOST_FILES:
            raise DataError(
                f"it holds more than {_MOST_FILES:,} files", where=str(folder), next_step="git gc"
            )


def _require_own_file(path: Path, git: Path) -> None:
    real = os.path.realpath(path)
    if path.is_symlink() and not is_below(real, os.path.realpath(git)):
        raise _outside(path, "it is a link to another place")
    if os.path.lexists(real) and stat.S_IFMT(os.lstat(real).st_mode) not in _FILES:
        raise DataError(
            "git would wait for what is neither a file nor a folder",
            where=str(path),
            next_step="use a clone made by git clone",
        )


def _repositories(top: Path) -> Iterator[Path]:
    """The folders whose configuration git reads for ``top``: its repository's own, which a file
    .git may name elsewhere (a submodule's, a linked working folder's), and the one that it shares
    with others.

    Raises:
        DataError: .git is a link that leads out of ``top``, or a file git would read otherwise.
    """
    git = top / ".git"
    real = Path(os.path.realpath(git))
    if not is_below(real, os.path.realpath(top)):
        raise _outside(git, "it is a link to another place")
    if real.is_file():
        named = _line(real)
        if not named.startswith(_GIT_FILE):
            return  # git reads none of it either
        real = Path(os.path.realpath(top / named.removeprefix(_GIT_FILE)))
    yield real
    common = real / "commondir"
    if common.exists():
        yield Path(os.path.realpath(real / _line(common)))


def _line(path: Path) -> str:
    """The path that a small file of git's holds, as git reads it; empty where there is none."""
    try:
        with open_regular(path) as file:
            content = file.read(_MOST_GIT_FILE_BYTES + 1)
    except OSError:
        return ""
    if len(content) > _MOST_GIT_FILE_BYTES or b"\0" in content:
        raise _outside(path, "it names no folder")
    return os.fsdecode(content.rstrip(b"\r\n"))


def _place(git: Path, top: Path) -> Path:
    """Return the folder whose files a repository's configuration may name: ``top`` if it contains
    the repository, else the clone that does."""
    if is_below(git, os.path.realpath(top)):
        return top
    return next((each.parent for each in (git, *git.parents) if each.name == ".git"), git)


def _stays_in(config: Path, top: Path, place: Path, *, is_included: bool = False) -> bool:
    """Whether a configuration names only files below ``top`` or ``place`` for git to read; ignore
    rules may be the user's. An include is relative to the file, all else to ``top``. A name with
    quotes or escapes, which git reads in its own way, does not count."""
    try:
        with open_regular(config) as file:
            content = file.read(_MOST_CONFIG_BYTES + 1)
    except FileNotFoundError:
        return not is_included
    except OSError:
        return False
    text = content.decode("utf-8", "replace")
    for key, value in _NAMED.findall(text):
        is_include = key.lower() == "path"
        if is_include and not _INCLUDES.search(text):
            continue  # of a section that is none of git's own
        base = config.parent if is_include else top
        path = os.path.realpath(base / os.path.expanduser(value))
        own = () if is_include else (os.path.expanduser("~"),)
        places = map(os.path.realpath, (top, place, *own))
        is_plain = _PLAIN_PATH.fullmatch(value)
        if not is_plain or not any(is_below(path, each) for each in places):
            return False
        if is_include and (is_included or not _stays_in(Path(path), top, place, is_included=True)):
            return False
    return len(content) <= _MOST_CONFIG_BYTES


def _outside(path: Path, why: str) -> DataError:
    return DataError(
        f"git would read files outside the repository: {why}",
        where=str(path),
        next_step="use a clone made by git clone; an include belongs into your own ~/.gitconfig",
    )


def _candidates(root: Path) -> list[Path]:
    """The folders from ``root`` upwards on its file system that hold a ``.git``, nearest first; an
    empty folder of that name does not count."""
    found = []
    try:
        device = os.stat(root).st_dev
        for folder in (root, *root.parents):
            if os.stat(folder).st_dev != device:
                break
            git = folder / ".git"
            if git.is_dir() and not git.is_symlink() and not any(git.iterdir()):
                continue
            if os.path.lexists(git):
                found.append(folder)
    except OSError:
        return found
    return found


class _Git:
    """Git on ``root`` with ``top`` as its working folder, whatever ``core.worktree`` says."""

    def __init__(self, program: str, root: Path, top: Path, config: Path, until: float) -> None:
        """``until`` (monotonic seconds) all answers together are to be there."""
        self._program, self.root, self.top, self._until = program, root, top, until
        self.unread: set[str] = set()
        self._environment = reader_environment(
            also={
                **_homes(),
                **_CLOSED,
                "GIT_CONFIG_GLOBAL": str(config),
                "GIT_WORK_TREE": str(top),
                "GIT_CEILING_DIRECTORIES": str(top.parent),
            }
        )

    def ask(self, *words: str, may_be_none: bool = False) -> bytes | None:
        """Return git's answer; None where it has none for ``rev-parse``, if that may be.

        Raises:
            DataError: it refuses the repository, or does not answer.
        """
        command = [self._program, *_OPTIONS, *words]
        left_s = max(0.1, self._until - time.monotonic())
        code, out, said = _run(command, self.root, self._environment, left_s)
        if code == 0:
            self.unread |= set(_UNREAD.findall(said))
            return out
        if "dubious ownership" in said or "unsafe repository" in said:
            raise DataError(
                "git refuses this repository, which belongs to another user: its ignore rules are "
                "not known",
                where=str(self.top),
                next_step="git config --global --add safe.directory " + shlex.quote(str(self.top)),
            )
        if "cannot use bare repository" in said:
            raise DataError(
                "this is a bare git repository inside another one: its configuration is not used",
                where=str(self.root),
                next_step=f"cd {shlex.quote(str(self.top))}",
            )
        if may_be_none and (words[1:] != ("--git-dir",) or "not a git repository" in said):
            return None
        raise DataError(
            "git cannot list this repository: its ignore rules are not known",
            where=str(self.top),
            next_step=f"git -c core.fsmonitor= -C {shlex.quote(str(self.root))} ls-files",
        )


def _run(
    command: list[str], folder: Path, environment: Mapping[str, str], most_s: float = _MOST_S
) -> tuple[int, bytes, str]:
    """The exit status, the answer and the complaint of a git command.

    Raises:
        DataError: it cannot be started; GitStopped: it exceeds a limit.
    """
    try:
        ended = run_reader(
            command, most_s=most_s, most_cpu_s=_MOST_CPU_S, folder=folder, environment=environment,
            most_bytes=_MOST_BYTES,
        )  # fmt: skip
    except ReaderStopped as error:
        raise GitStopped(
            f"git was stopped: {error}",
            where=str(folder),
            next_step="look for an ignore rule with many * in it, which takes git this long",
        ) from None
    except OSError as error:
        raise DataError(f"git cannot be run: {error.strerror}", where=command[0]) from None
    return ended.code, ended.out, ended.err.decode("utf-8", "replace")


def _listed(git: _Git, ignores: Iterable[str]) -> GitList:
    rules = [f"--exclude-from={each}" for each in ignores if each]
    # What the repository's own configuration names in the place of the user's rules comes on top.
    others = git.ask("ls-files", "-z", "--others", *rules, "--exclude-standard") or b""
    tracked: dict[str, Entry] = {}
    is_merged = True
    for row in (git.ask("ls-files", "-z", "--stage", "-t") or b"").split(b"\0"):
        about, _, name = row.partition(b"\t")
        if name:
            tag, mode, id_, stage = about.decode("ascii").split()
            is_merged &= stage == "0"
            tracked[os.fsdecode(name)] = Entry(mode, id_, tag == "S")
    below = git.root.relative_to(git.top).as_posix()
    tree = "HEAD^{tree}" if below == "." else f"HEAD:{below}"
    commit = git.ask("rev-parse", "--verify", "HEAD^{commit}", may_be_none=True) or b""
    of_commit = git.ask("rev-parse", "--verify", tree, may_be_none=True) if commit else b""
    return GitList(
        top=git.top,
        tracked=tracked,
        others=tuple(os.fsdecode(name) for name in others.split(b"\0") if name),
        commit=commit.decode("ascii").strip(),
        is_staged=not is_merged or (of_commit or b"").decode("ascii").strip() != _tree_id(tracked),
        unread=tuple(sorted(git.unread)),
    )


_MOST_NESTED = 100
"""Submodules and clones of one repository whose lists git is asked for."""


def _with_nested(root: Path, found: GitList, leaves_out: Callable[[str], bool]) -> GitList:
    """Add the files of the submodules and clones below ``root`` to its list."""
    tracked, unlisted, is_staged = dict(found.tracked), dict[str, str](), found.is_staged
    others = [name for name in found.others if not name.endswith("/")]
    clones = [name.rstrip("/") for name in found.others if name.endswith("/")]
    submodules = [name for name, entry in tracked.items() if entry.mode == _SUBMODULE]
    for number, name in enumerate((*submodules, *clones)):
        if number >= _MOST_NESTED:
            unlisted[name] = f"{_MOST_NESTED} others are listed; start a run in its folder"
            continue
        if leaves_out(f"{name}/") or not (root / name).is_dir() or (root / name).is_symlink():
            continue
        inner = _nested(root, name, leaves_out, is_clone=name in clones)
        if isinstance(inner, str):
            unlisted[name] = inner
            continue
        unlisted |= {f"{name}/{each}": why for each, why in inner.unlisted.items()}
        files = {f"{name}/{each}": entry for each, entry in inner.tracked.items()}
        others += [*(files if name in clones else ()), *(f"{name}/{each}" for each in inner.others)]
        if name not in clones:
            is_staged |= inner.is_staged or inner.commit != tracked[name].id
            tracked |= files
    return replace(
        found, tracked=tracked, others=tuple(others), is_staged=is_staged, unlisted=unlisted
    )


def _nested(
    root: Path, name: str, leaves_out: Callable[[str], bool], *, is_clone: bool
) -> GitList | str:
    """Return the list of the repository ``name`` below ``root``, or why there is none."""
    folder = root / name
    if folder not in _candidates(folder)[:1]:
        return "it is empty here; git submodule update --init"
    if is_clone and (folder / ".git").is_file():
        return "it is another working folder of a repository; cd there to send it"
    try:
        inner = git_list(folder, lambda each: leaves_out(f"{name}/{each}"), is_nested=True)
    except DataError as error:
        return f"{error.what}; {error.next_step}"
    return inner or "there is no repository"


# -- the user's own configuration -----------------------------------------------------------------


def _homes() -> dict[str, str]:
    """The variables by which git finds the user's files: a repository's own ``~/…`` needs them."""
    names = ("HOME", "XDG_CONFIG_HOME")
    return {name: os.environ[name] for name in names if os.path.isabs(os.environ.get(name, ""))}


def _settings_of_user(program: str, empty: Path) -> tuple[list[str], list[str]]:
    """(files of ignore rules, values of ``safe.directory``) of the user's own configuration.

    Git reads it in an ``empty`` folder. Files that it includes on a condition are read as if each
    held: a file that the user ignores in some repositories is left out of all.

    Raises:
        DataError: git cannot read it.
    """
    also = {name: value for name, value in os.environ.items() if name.startswith("GIT_CONFIG")}
    environment = reader_environment(
        also={
            **_homes(), **also, "LC_ALL": "C",
            "GIT_CEILING_DIRECTORIES": os.path.realpath(empty.parent),
        }
    )  # fmt: skip
    ignores, trusted, waiting = [], [], [""]
    for file in waiting:
        words = ["--file", file, "--includes"] if file else []
        command = [program, "config", *words, "-z", "--show-origin", "--get-regexp", _ASKED]
        code, out, _ = _run(command, empty, environment)
        if code not in (0, 1):  # 1: it has none of them
            raise DataError(
                "git cannot read your own configuration", where=file,
                next_step="git config --list",
            )  # fmt: skip
        fields = out.split(b"\0")
        own = ""
        for origin, row in zip(fields[::2], fields[1::2], strict=False):
            key, _, value = os.fsdecode(row).partition("\n")
            if key == "core.excludesfile":
                own = os.path.expanduser(value)
            elif key == "safe.directory":
                trusted += [] if file else [value]
            elif len(waiting) <= _MOST_INCLUDED and value:
                beside = os.path.dirname(os.fsdecode(origin).removeprefix("file:"))
                path = os.path.join(beside, os.path.expanduser(value))
                waiting += [path] if os.path.isfile(path) and path not in waiting else []
        ignores += [own] if own else []
        if not file and not own:
            usual = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
            ignores.append(os.path.join(usual, "git", "ignore"))
    return ignores, trusted


def _quoted(value: str) -> bytes:
    """``value`` as a configuration file has it."""
    plain = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return b'"%s"' % os.fsencode(plain)


def _existing(top: Path, name: str) -> str:
    """The path of a file of ignore rules, relative to ``top``; empty where it cannot be read."""
    path = top / name
    return str(path) if path.is_file() and os.access(path, os.R_OK) else ""


# -- comparison with the commit -------------------------------------------------------------------


def _hash(kind: bytes, content: bytes, digits: int) -> str:
    """The id that git gives an object."""
    made = hashlib.sha1(usedforsecurity=False) if digits == _SHA1_DIGITS else hashlib.sha256()
    made.update(b"%s %d\0" % (kind, len(content)))
    made.update(content)
    return made.hexdigest()


def _tree_id(tracked: Mapping[str, Entry]) -> str:
    """The id of a commit's folder that holds the files of an index; empty where none could."""
    digits = len(next(iter(tracked.values())).id) if tracked else _SHA1_DIGITS
    folders: dict[bytes, dict[bytes, tuple[bytes, str]]] = {b"": {}}
    for name, entry in tracked.items():
        folder, _, last = os.fsencode(name).rpartition(b"/")
        if folder.count(b"/") > _DEEPEST or len(folders) > _MOST_FOLDERS:
            return ""
        above = folder
        while above and above not in folders:
            folders[above] = {}
            above = above.rpartition(b"/")[0]
        folders[folder][last] = (entry.mode.encode(), entry.id)
    for folder in sorted(folders, key=lambda each: -1 if not each else each.count(b"/"))[::-1]:
        # Git sorts a folder as if its name ended in a slash.
        rows = sorted(
            (name + b"/" * (mode == b"40000"), b"%s %s\0" % (mode, name) + bytes.fromhex(id_))
            for name, (mode, id_) in folders[folder].items()
        )
        made = _hash(b"tree", b"".join(row for _, row in rows), digits)
        above, _, last = folder.rpartition(b"/")
        if folder:
            folders[above][last] = (b"40000", made)
    return made


def is_as_committed(entry: Entry, mode: int, content: bytes, *, has_bits: bool) -> bool:
    """Whether a file is the one in the index: no filter runs.

    Line ends of Windows count as those that git would store, and a file of Git LFS as its pointer.
    A file that another filter writes differs.

    Args:
        mode: the file's own.
        content: the bytes of a regular file; the target of a link.
        has_bits: whether its file system keeps the bit of an executable file.
    """
    if stat.S_ISLNK(mode) or entry.mode in (_LINK, _SUBMODULE):
        is_link = stat.S_ISLNK(mode) and entry.mode == _LINK
        return is_link and _hash(b"blob", content, len(entry.id)) == entry.id
    if has_bits and bool(mode & stat.S_IXUSR) != (entry.mode == _EXECUTABLE):
        return False
    return any(_hash(b"blob", each, len(entry.id)) == entry.id for each in _stored(content))


def _stored(content: bytes) -> Iterable[bytes]:
    """The contents that git may have stored for a file, the likeliest first."""
    yield content
    if b"\r\n" in content:
        yield content.replace(b"\r\n", b"\n")
    sha256 = hashlib.sha256(content).hexdigest()
    yield (
        f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {len(content)}\n"
    ).encode()
