"""The user's own code: what of the working tree is sent, and what never is.

Git's list of files where there is one: tracked, and untracked ones that are not ignored; all that
is not hidden elsewhere. ``.trmcloudignore``, in the language of .gitignore, leaves out more. A
file that looks like a key or a secret, by its name or by a token in it, is left out, whether git
lists it or not, unless a line of ``.trmcloudignore`` is ``!`` and its whole name. So are links.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import stat
import subprocess
import tarfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from trmcloud.app.staging import CODE_DIR
from trmcloud.core.contract.command import CODE_NAME, is_inside
from trmcloud.core.contract.command_terms import TREE_NAME
from trmcloud.core.contract.manifest import MANIFEST_NAME
from trmcloud.core.errors import DataError
from trmcloud.core.values import dataclass
from trmcloud.io.redaction import TOKEN

if TYPE_CHECKING:  # reading them takes a package that other commands need not load
    from trmcloud.app.package_resolving import ResolvedPackages
    from trmcloud.app.requirement_files import Packages

IGNORE_NAME = ".trmcloudignore"
MOST_BYTES = 1 << 30
MOST_FILES = 50_000
_KEY_CHARS = 24
_GIT_S = 60.0
_KEYS = (
    ".env", ".env.*", "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.kdbx", "*.asc", "id_rsa*",
    "id_dsa*", "id_ecdsa*", "id_ed25519*", ".netrc", "_netrc", ".pypirc", ".npmrc",
    ".git-credentials", "kaggle.json", "credentials", "credentials.json", "client_secret*.json",
    "service_account*.json", ".htpasswd", "*.ovpn", "known_hosts", "*.env", "*.env.*", "*.tfvars",
    "*.tfvars.json", "*.tfstate", "*.tfstate.*", "*.keystore", "*.ppk", "*.agekey", "*.kubeconfig",
    ".dockerconfigjson", ".pgpass", ".my.cnf", ".boto", ".s3cfg", "rclone.conf", ".vault-token",
    "wallet.dat",
)  # fmt: skip
#: Names of such files whatever their suffix, unless that is a program's.
_SECRET_STEM = re.compile(
    r"((.*[._-])?(secrets?|credentials?|passwords?|passwd|api[_-]?keys?|auth[_-]?tokens?"
    r"|access[_-]?tokens?)([._-].*)?|tokens?|aws|gcp[_-]?key|kubeconfig)"
)
_DATA_SUFFIXES = frozenset(
    ("", ".toml", ".yaml", ".yml", ".json", ".ini", ".cfg", ".conf", ".txt", ".csv", ".properties",
     ".xml", ".sh", ".env", ".bak", ".old")
)  # fmt: skip
_KEY_FOLDERS = frozenset((".ssh", ".aws", ".gnupg", ".runpod", ".kube", ".azure", ".sky", ".git"))
_PUBLIC = (
    "*.pub", "*.env.example", "*.env.sample", "*.env.template", "*.tfvars.example", "tokens.txt",
    "tokens.json", "tokens.csv",
)  # fmt: skip
_PRIVATE_KEY = re.compile(rb"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----")
_TOKEN = re.compile(TOKEN.encode())
_LOOKED_AT_BYTES = 4096
_SEARCHED_BYTES = 1 << 16
_TEXT_SUFFIXES = _DATA_SUFFIXES | {".py", ".md", ".ipynb", ".js", ".ts", ".env", ".hcl", ".tf"}


@dataclass(frozen=True)
class WorkingTree:
    """The files of ``root`` to send: relative names, their bytes in all, and those left out."""

    root: Path
    names: tuple[str, ...]
    size_bytes: int
    keys: tuple[str, ...] = ()
    """Left out, since they look like keys."""
    links: tuple[str, ...] = ()
    fetched: tuple[str, ...] = ()
    """Folders that ``fetch-best`` has filled: left out."""
    by_git: bool = False
    folder: str = ""
    """The folder below ``root`` that the command is started in; empty: ``root`` itself."""
    git_commit: str = ""
    """The commit that it was checked out at; empty where there is none."""
    is_dirty: bool = False
    """Whether files below ``root`` differ from that commit, or are not in it."""
    packages: Packages | None = None
    """The packages of --pip; None where it was left out."""
    resolved: ResolvedPackages | None = None
    not_installed: tuple[str, ...] = ()
    """Without --pip, the lists of packages that are there."""
    above: str = ""
    """The way from ``root`` up to the top of its git repository (``../..``); empty where ``root``
    is the top, or has no repository."""


def look_at(root: Path, also_out: Sequence[str] = (), folder: str = "") -> WorkingTree:
    """Select the files of ``root`` to send; only sizes are read, except of files that might be
    keys.

    Args:
        also_out: relative folders that go another way.
        folder: the one below ``root`` that the command is started in.

    Raises:
        DataError: there is nothing, or more than is sent; it names what is largest.
    """
    listed = _by_git(root)
    ignored = _IgnoreRules(root)
    names, keys, links, sizes = [], [], [], {}
    every = sorted(set(listed if listed is not None else _walked(root)))
    fetched = _fetched(every)
    for name in every:
        out = any(name == folder or name.startswith(f"{folder}/") for folder in also_out)
        if out or not is_inside(name) or ignored.leaves_out(name):
            continue
        if name.startswith(fetched) and not ignored.sends(name):
            continue
        try:
            about = os.lstat(root / name)
        except OSError:
            continue  # tracked, and deleted here
        if stat.S_ISLNK(about.st_mode):
            links.append(name)
        elif not stat.S_ISREG(about.st_mode):
            continue  # a submodule's folder
        elif not ignored.sends(name) and _is_key(root / name, name):
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
    by_git = listed is not None
    above = _git(root, "rev-parse", "--show-cdup") if by_git else None
    commit = _git(root, "rev-parse", "--verify", "HEAD") if by_git else None
    return WorkingTree(
        root=root,
        names=tuple(names),
        size_bytes=whole,
        keys=tuple(keys),
        links=tuple(links),
        fetched=fetched,
        by_git=by_git,
        folder=folder,
        above=os.fsdecode(above or b"").strip().rstrip("/"),
        git_commit=os.fsdecode(commit or b"").strip(),
        is_dirty=bool(commit and _git(root, "status", "--porcelain", "--", ".")),
    )


def _fetched(names: Sequence[str]) -> tuple[str, ...]:
    """The folders, each with a slash, that hold a command's checkpoint as it is brought home: a
    model of another run, and often larger than all of the code."""
    there = set(names)
    folders = (name.removesuffix(TREE_NAME) for name in names if name.endswith(f"/{TREE_NAME}"))
    return tuple(folder for folder in folders if f"{folder}{MANIFEST_NAME}" in there)


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
    if name in tree.links or path.is_symlink():
        return "it is a link"
    if _IgnoreRules(tree.root).leaves_out(name):
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
        with tarfile.open(making / CODE_NAME, "w", format=tarfile.PAX_FORMAT) as archive:
            for name in tree.names:
                content = _read(tree.root / name)
                about = tarfile.TarInfo(name)
                about.size = len(content)
                executable = os.access(tree.root / name, os.X_OK)
                about.mode = 0o755 if executable else 0o644
                archive.addfile(about, io.BytesIO(content))
                digest.update(f"{about.mode} {len(content)} {name}\n".encode() + content)
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
        raise DataError(
            f"the archive of the working tree cannot be made: {error.strerror or error}",
            where=str(error.filename or tree.root),
        ) from error
    finally:
        shutil.rmtree(making, ignore_errors=True)


def _read(path: Path) -> bytes:
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        return file.read(MOST_BYTES + 1)


def _by_git(root: Path) -> list[str] | None:
    """None where git keeps no list of ``root``."""
    listed = _git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    if listed is None:
        return None
    return [os.fsdecode(name) for name in listed.split(b"\0") if name]


def _git(root: Path, *words: str) -> bytes | None:
    """Return the output of a git command about ``root``; None where it fails."""
    try:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, timeout=_GIT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _walked(root: Path) -> Iterable[str]:
    """List the files where there is no git: all except hidden files, caches and environments."""
    count = 0
    for folder, folders, files in os.walk(root):
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
                    return
                yield (here / name).relative_to(root).as_posix()


def _is_key(path: Path, name: str) -> bool:
    parts = name.split("/")
    base = parts[-1].lower()
    if any(part in _KEY_FOLDERS for part in parts[:-1]):
        return True
    if any(fnmatchcase(base, pattern) for pattern in _PUBLIC):
        return False
    if any(fnmatchcase(base, pattern) for pattern in _KEYS):
        return True
    stem, dot, suffix = base.rpartition(".")
    stem, suffix = (stem, dot + suffix) if stem else (base, "")
    if suffix in _DATA_SUFFIXES and (_SECRET_STEM.fullmatch(stem)):
        return True
    if suffix in _TEXT_SUFFIXES:
        try:
            with open(path, "rb") as file:
                begin = file.read(_SEARCHED_BYTES)
        except OSError:
            return False
        head = begin[:_LOOKED_AT_BYTES]
        is_private = head.lstrip().startswith(b"-----BEGIN") and bool(_PRIVATE_KEY.search(head))
        return is_private or bool(_TOKEN.search(begin))
    return False


def _too_large(root: Path, sizes: dict[str, int], whole: int) -> DataError:
    by_top: Counter[str] = Counter()
    for name, size in sizes.items():
        top, slash, _ = name.partition("/")
        by_top[top + slash] += size
    largest, size = by_top.most_common(1)[0]
    most = f"{MOST_BYTES / 1e9:.1f} GB or {MOST_FILES:,} files"
    return DataError(
        f"the working tree has {whole / 1e9:.1f} GB in {len(sizes):,} files, {size / 1e9:.1f} GB "
        f"of it in {largest}: at most {most} can be sent",
        where=str(root),
        next_step=f"add {largest} to {IGNORE_NAME}; send data with --data FOLDER",
    )


class _IgnoreRules:
    """The lines of an ignore file, as gitignore(5) has them: the last that matches decides."""

    def __init__(self, root: Path) -> None:
        lines: list[str] = []
        with suppress(OSError):
            lines = (root / IGNORE_NAME).read_text("utf-8", errors="replace").splitlines()
        self._sent = {line.rstrip()[1:].lstrip("/") for line in lines if line.startswith("!")}
        self._rules = [rule for line in lines if (rule := _rule(line)) is not None]

    def sends(self, name: str) -> bool:
        """Whether a line of its own, ``!`` and the whole name without a wildcard, has the file sent
        though it looks like a key."""
        return name in self._sent

    def leaves_out(self, name: str) -> bool:
        """Whether a file is left out: it, or a folder that it is in."""
        parts = name.split("/")
        for depth in range(1, len(parts) + 1):
            path, is_folder = "/".join(parts[:depth]), depth < len(parts)
            out = False
            for pattern, only_folders, leaves_in in self._rules:
                if (is_folder or not only_folders) and pattern.fullmatch(path):
                    out = not leaves_in
            if out:
                return True
        return False


def _rule(line: str) -> tuple[re.Pattern[str], bool, bool] | None:
    """(what a path must match, whether it must be a folder, whether it is left in)"""
    line = line.rstrip()
    if not line or line.startswith("#"):
        return None
    leaves_in = line.startswith("!")
    line = line[1:] if leaves_in else line
    only_folders = line.endswith("/")
    line = line.rstrip("/")
    anchored = "/" in line
    made, position = "" if anchored else "(?:.*/)?", 0
    line = line.lstrip("/")
    while position < len(line):
        char = line[position]
        if line.startswith("**/", position):
            made, position = made + "(?:.*/)?", position + 3
        elif line.startswith("**", position):
            made, position = made + ".*", position + 2
        else:
            made += {"*": "[^/]*", "?": "[^/]"}.get(char, re.escape(char))
            position += 1
    return re.compile(made), only_folders, leaves_in
