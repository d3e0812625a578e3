"""The user's own code: what of the working tree is sent, and what never is.

Git's list of files where there is one: tracked, and untracked ones that are not ignored; all that
is not hidden elsewhere. ``.trmcloudignore``, in the language of .gitignore, leaves out more. A
file that looks like a key or a secret, by its name or by a token in it, is left out, whether git
lists it or not, unless a line of ``.trmcloudignore`` is ``!`` and its whole name. So are links,
what is behind one, and what trmcloud itself wrote.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import stat
import tarfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from trmcloud.core.contract.command import CODE_NAME, MOST_PATH_CHARS, is_inside
from trmcloud.core.errors import DataError
from trmcloud.core.values import Value
from trmcloud.io.files import is_below
from trmcloud.operations.home import home_dir
from trmcloud.operations.sending.git_tree import GitList, git_list, is_as_committed
from trmcloud.operations.sending.ignore_rules import IGNORE_NAME, IgnoreRules
from trmcloud.operations.sending.own_outputs import fetched_among, is_among, outputs_among
from trmcloud.operations.sending.secret_files import looks_like_key
from trmcloud.operations.sending.staging import CODE_DIR

if TYPE_CHECKING:  # reading them takes a package that other commands need not load
    from trmcloud.operations.sending.package_resolving import ResolvedPackages
    from trmcloud.operations.sending.requirement_files import Packages

MOST_BYTES = 1 << 30
MOST_FILES = 50_000
_KEY_CHARS = 24


class WorkingTree(Value):
    """The files of ``root`` to send: relative names, their bytes in all, and those left out."""

    root: Path
    names: tuple[str, ...]
    size_bytes: int
    keys: tuple[str, ...] = ()
    """Left out, since they look like keys."""
    links: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    """Folders that could not be read: what is in them is not sent."""
    fetched: tuple[str, ...] = ()
    """Folders that ``fetch-best`` has filled: left out."""
    outputs: tuple[str, ...] = ()
    """Other files and folders that trmcloud wrote: left out."""
    skipped_rules: tuple[str, ...] = ()
    """Lines of the ignore file that are not used: they take too long."""
    git: GitList | None = None
    folder: str = ""
    """The folder below ``root`` that the command is started in; empty: ``root`` itself."""
    packages: Packages | None = None
    """The packages of --pip; None where it was left out."""
    resolved: ResolvedPackages | None = None
    not_installed: tuple[str, ...] = ()
    """Without --pip, the lists of packages that are there."""
    data_left_out: tuple[str, ...] = ()
    """Of --data: see ``staging.DataFiles``."""

    @property
    def by_git(self) -> bool:
        return self.git is not None

    @property
    def git_commit(self) -> str:
        """The commit that it was checked out at; empty where there is none."""
        return self.git.commit if self.git is not None else ""

    @property
    def unlisted(self) -> Mapping[str, str]:
        """See ``GitList.unlisted``."""
        return self.git.unlisted if self.git is not None else {}

    @property
    def above(self) -> str:
        """The way from ``root`` up to the top of its git repository (``../..``); empty where
        ``root`` is the top, or has no repository."""
        if self.git is None:
            return ""
        way = os.path.relpath(self.git.top, os.path.realpath(self.root))
        return "" if way == "." else way


def look_at(root: Path, also_out: Sequence[str] = (), folder: str = "") -> WorkingTree:
    """Select the files of ``root`` to send; only sizes are read, except of files that might be
    keys.

    Args:
        also_out: relative folders that go another way.
        folder: the one below ``root`` that the command is started in.

    Raises:
        DataError: there is nothing, or more than is sent; it names what is largest.
    """
    ignored = _rules_of(root)

    def is_out(name: str) -> bool:
        apart = any(name == each or name.startswith(f"{each}/") for each in also_out)
        return apart or ignored.leaves_out(name)

    git = git_list(root, is_out)
    names, keys, links, sizes = [], [], [], {}
    unread = set(git.unread) if git is not None else set[str]()
    every = sorted({*git.tracked, *git.others} if git is not None else set(_walked(root, unread)))
    home = home_dir(os.environ)
    if os.path.realpath(home) == os.path.realpath(root):
        raise DataError(
            "this folder is TRMCLOUD_HOME", where=str(root), next_step="cd to the script's folder"
        )
    fetched, outputs = fetched_among(root, every), outputs_among(root, every, home)
    is_linked = _LinkedFolders(root)
    for name in every:
        is_long = len(name) > MOST_PATH_CHARS
        if not (is_long or is_inside(name)) or is_out(name):
            continue
        if is_among(name, fetched + outputs) and not ignored.sends(name):
            continue
        if is_long:
            raise DataError(
                f"{ascii(name)[1:-1]:.140} cannot be sent: its path is longer than "
                f"{MOST_PATH_CHARS} characters",
                where=str(root),
                next_step=f"use shorter names, or exclude it in {IGNORE_NAME}",
            )
        try:
            about = os.lstat(root / name)
        except OSError as error:  # tracked, and deleted here
            unread |= {name.rpartition("/")[0]} if isinstance(error, PermissionError) else set()
            continue
        if stat.S_ISLNK(about.st_mode) or is_linked(name.rpartition("/")[0]):
            links.append(name)
        elif not stat.S_ISREG(about.st_mode):
            continue  # a submodule's folder: its files are listed beside it
        elif not ignored.sends(name) and looks_like_key(root / name, name):
            keys.append(name)
        else:
            names.append(name)
            sizes[name] = about.st_size
    whole = sum(sizes.values())
    if not names:
        raise DataError(
            "there are no files to send here",
            where=str(root),
            next_step="cd to the folder of the script, or check .trmcloudignore",
        )
    if whole > MOST_BYTES or len(names) > MOST_FILES:
        raise _too_large(root, sizes, whole)
    return WorkingTree(
        root=root,
        names=tuple(names),
        size_bytes=whole,
        keys=tuple(keys),
        links=tuple(links),
        unread=tuple(sorted(name for name in unread if not is_out(f"{name}/"))),
        fetched=fetched,
        outputs=outputs,
        skipped_rules=tuple(ignored.skipped),
        git=git,
        folder=folder,
    )


def differs_from_commit(tree: WorkingTree) -> bool:
    """Whether the files that are sent are not those of ``tree.git_commit``: one was changed, added
    or deleted, or a change is staged. False where there is no commit.

    A file that is not sent, or goes another way, is not compared.

    Raises:
        OSError: a file cannot be read.
    """
    git = tree.git
    if git is None or not git.commit:
        return False
    sent = {*tree.names, *tree.links}
    ignored = _rules_of(tree.root)

    def is_left_out(name: str) -> bool:
        ours = is_among(name, tree.fetched + tree.outputs)
        return ours or name in tree.keys or (is_inside(name) and ignored.leaves_out(name))

    if git.is_staged or not all(is_left_out(name) for name in git.others):
        return True
    for name in git.tracked.keys() - sent:
        is_there = git.tracked[name].is_skipped or os.path.lexists(tree.root / name)
        if not is_there and not is_left_out(name):
            return True
    modes = {name: os.lstat(tree.root / name).st_mode for name in sorted(sent)}
    has_bits = any(not modes[name] & stat.S_IXUSR for name in tree.names)
    with _Reader(tree.root) as files:
        for name, mode in modes.items():
            is_link = stat.S_ISLNK(mode)
            content = os.fsencode(os.readlink(tree.root / name)) if is_link else files.read(name)
            if not is_as_committed(git.tracked[name], mode, content, has_bits=has_bits):
                return True
    return False


def why_left_out(tree: WorkingTree, name: str) -> str:
    """Why the file ``name``, relative to the tree's root, is not among the files to send; empty
    where it is one, or where there is no such file."""
    path = tree.root / name
    if name in tree.names or not os.path.lexists(path):
        return ""
    if name in tree.keys:
        return "it looks like a key"
    if name.startswith(tree.fetched):
        return "it was downloaded by fetch-best"
    if is_among(name, tree.outputs):
        return "it was written by trmcloud"
    if name in tree.links or path.is_symlink():
        return "it is a link"
    for folder, why in tree.unlisted.items():
        if name.startswith(f"{folder}/"):
            return f"the repository {folder} is not sent: {why}"
    if _rules_of(tree.root).leaves_out(name):
        return f"{IGNORE_NAME} excludes it"
    return "git ignores it" if tree.by_git else "it is hidden, or part of an environment"


def pack(tree: WorkingTree, home: Path, beside: Mapping[str, bytes] | None = None) -> Path:
    """The folder below ``home`` that holds the tree as ``code.tar``, and the files ``beside`` it:
    the same for the same files.

    Raises:
        DataError: it cannot be read or written, or changed while it was read.
    """
    folder = home / CODE_DIR
    making = folder / f".tree.{os.getpid()}"
    try:
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir(parents=True)
        digest = hashlib.sha256()
        with (
            _Reader(tree.root) as files,
            tarfile.open(making / CODE_NAME, "w", format=tarfile.PAX_FORMAT) as archive,
        ):
            for name in tree.names:
                content = files.read(name)
                about = tarfile.TarInfo(name)
                about.size = len(content)
                executable = os.access(tree.root / name, os.X_OK)
                about.mode = 0o755 if executable else 0o644
                archive.addfile(about, io.BytesIO(content))
                digest.update(os.fsencode(f"{about.mode} {len(content)} {name}\n") + content)
        for name, content in sorted((beside or {}).items()):
            path = making / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            digest.update(f"{len(content)} beside {name}\n".encode() + content)
        target = folder / digest.hexdigest()[:_KEY_CHARS]
        if not target.is_dir():
            os.rename(making, target)
        return target
    except OSError as error:
        where = str(error.filename or home)
        readable = f"make it readable with chmod u+r, or exclude it in {IGNORE_NAME}"
        raise DataError(
            f"the archive of the working tree cannot be made: {error.strerror or error}",
            where=where,
            next_step=readable
            if is_below(where, str(tree.root))
            else "make room for TRMCLOUD_HOME",
        ) from error
    finally:
        shutil.rmtree(making, ignore_errors=True)


class _Reader:
    """Reads files of a tree: none of the folders on the way may be a link by now."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._folder = ""
        self._handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY)

    def __enter__(self) -> _Reader:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._handle)

    def read(self, name: str) -> bytes:
        """Return a file's bytes.

        Raises:
            OSError: it is a link, or cannot be read.
        """
        folder, _, base = name.rpartition("/")
        try:
            if folder != self._folder:
                self._enter(folder)
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
            with open(os.open(base, flags, dir_fd=self._handle), "rb") as file:
                return file.read(MOST_BYTES + 1)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._root / name)) from None

    def _enter(self, folder: str) -> None:
        handle = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for part in folder.split("/") if folder else ():
                flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
                inner = os.open(part, flags, dir_fd=handle)
                os.close(handle)
                handle = inner
        except OSError:
            os.close(handle)
            raise
        os.close(self._handle)
        self._folder, self._handle = folder, handle


class _LinkedFolders:
    """Whether a folder of the tree is a link, or behind one: git may list files in it."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._known = {"": False}

    def __call__(self, folder: str) -> bool:
        if folder not in self._known:
            above = self(folder.rpartition("/")[0])
            self._known[folder] = above or os.path.islink(self._root / folder)
        return self._known[folder]


def _rules_of(root: Path) -> IgnoreRules:
    lines: list[str] = []
    with suppress(OSError):
        lines = (root / IGNORE_NAME).read_text("utf-8-sig", errors="surrogateescape").splitlines()
    return IgnoreRules(lines)


def _walked(root: Path, unread: set[str]) -> Iterable[str]:
    """List the files where there is no git: all except hidden files, caches and environments. Note
    the folders that cannot be read."""
    count = 0

    def note(error: OSError) -> None:
        unread.add(os.path.relpath(error.filename, root))

    for folder, folders, files in os.walk(root, onerror=note):
        here = Path(folder)
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".")
            and name not in ("__pycache__", "node_modules")
            and not os.path.exists(here / name / "pyvenv.cfg")  # false where it cannot be looked at
        )
        for name in files:
            if not name.startswith("."):
                count += 1
                if count > 20 * MOST_FILES:
                    what = f"there are more than {20 * MOST_FILES:,} files here"
                    raise DataError(
                        what, where=str(root), next_step="move data to a folder of --data"
                    )
                yield (here / name).relative_to(root).as_posix()


def _too_large(root: Path, sizes: dict[str, int], whole: int) -> DataError:
    """The error that names the folder, or the suffix of files in none, to leave out."""
    is_many = len(sizes) > MOST_FILES
    by_top: Counter[str] = Counter()
    for name, size in sizes.items():
        top, slash, _ = name.partition("/")
        suffix = "" if slash else os.path.splitext(name)[1]
        by_top[f"*{suffix}" if is_many and suffix else top + slash] += 1 if is_many else size
    largest, share = by_top.most_common(1)[0]
    of_it = f"{share:,} of them" if is_many else f"{share / 1e9:.1f} GB of it"
    most = f"{MOST_BYTES / 1e9:.1f} GB or {MOST_FILES:,} files"
    return DataError(
        f"the working tree has {whole / 1e9:.1f} GB in {len(sizes):,} files, {of_it} "
        f"in {largest}: at most {most} can be sent",
        where=str(root),
        next_step=f"add {largest} to {IGNORE_NAME}; send data with --data FOLDER",
    )
