"""A project's own list of packages, in the forms that projects keep it in, as lines for pip.

``requirements.txt`` with all that it includes, ``pyproject.toml``, ``uv.lock`` and the part of
``environment.yml`` that pip can install become one flat list. A line that cannot be used is refused
with its file and number, before anything is rented.

A list is another party's text. Only files that are sent are opened, by their place in the tree and
never through a link; only options of the tables below pass, in exactly these spellings (pip itself
takes abbreviations, and several on one line); and ``${NAME}`` stays as it is. What an index may be
asked for is ``Line.asked``: a name with versions. All else is installed on the machine.
"""

from __future__ import annotations

import os
import posixpath
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import tomllib
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from trmcloud.core.contract.command import is_inside
from trmcloud.core.errors import DataError
from trmcloud.core.text import CONTROL, one_line
from trmcloud.core.values import Value, replace

PUBLIC = "https://pypi.org/simple"
KNOWN_NAMES = ("uv.lock", "requirements.txt", "pyproject.toml", "environment.yml")
"""The usual names of such files, the most exact first."""
_MOST_BYTES = 16 << 20
_MOST_CHARS = 2000
"""Of a requirement without its hashes: a version's numbers are not read beyond."""
_MOST_DEPTH = 8
_MOST_FILES = 100
_PYTHONS = tuple(f"3.{minor}" for minor in range(9, 16))
"""The versions for which the markers of a lock are evaluated."""
_ANY_LINUX = {
    "sys_platform": "linux", "platform_system": "Linux", "os_name": "posix",
    "platform_machine": "x86_64", "implementation_name": "cpython",
    "platform_python_implementation": "CPython", "extra": "",
}  # fmt: skip
_WITH_VALUE = {
    "-i": "--index-url", "--index-url": "--index-url", "--pypi-url": "--index-url",
    "--extra-index-url": "--extra-index-url", "-f": "--find-links", "--find-links": "--find-links",
    "--trusted-host": "--trusted-host", "--only-binary": "--only-binary",
    "--no-binary": "--no-binary", "-r": "--requirement", "--requirement": "--requirement",
    "-c": "--constraint", "--constraint": "--constraint", "-e": "--editable",
    "--editable": "--editable",
}  # fmt: skip
"""Options of a requirements file, by each of their names."""
_SWITCHES = ("--no-index", "--pre", "--prefer-binary", "--require-hashes")
_OF_A_LINE = ("--hash", "--config-settings", "--global-option")
_OF_INDEXES = ("--index-url", "--extra-index-url", "--find-links")
_VARIABLE = re.compile(r"\$\{([A-Z0-9_]+)\}")
"""What pip replaces by a variable's value on the machine."""
_VCS = re.compile(r"(git|hg|svn|bzr)\+(?!file:|[./~])\S+")
_ADDRESS = re.compile(r"(https?://|\$\{)\S+")
_ARCHIVE = re.compile(r"[^\s=<>!~;\[@]+\.(whl|zip|tgz|tar(\.\w+)?)")
_NAME_IN = re.compile(r"[#&]egg=([A-Za-z0-9._-]+)|([A-Za-z0-9._]+?)-\d[^/]*\.(?:whl|tar\.gz|zip)")
_CONDA = re.compile(
    r"(?:[A-Za-z0-9._-]+::)?([A-Za-z0-9][A-Za-z0-9._-]*)\s*(\[[^\]]*\])?\s*(.*)", re.DOTALL
)
_OF_THE_IMAGE = re.compile(
    r"(pip|setuptools|wheel|cudatoolkit|pytorch-cuda|pytorch-mutex|cudnn|nccl|mkl|blas|libblas|openmp"
    r"|_libgcc_mutex|_openmp_mutex|cuda(-.*)?|ca-certificates|openssl)"
)
"""Of conda's packages, what the machine's image has in its own way."""
_RENAMED = {
    "pytorch": "torch", "matplotlib-base": "matplotlib", "opencv": "opencv-python",
    "pytables": "tables", "msgpack-python": "msgpack", "tensorflow-gpu": "tensorflow",
}  # fmt: skip


class SentFiles(Value):
    """The files of a tree that are sent: the only ones that a list is read from.

    ``names`` are relative to ``root``, ``folder`` is where the command starts. ``why_not`` returns
    why a file is not sent, empty where there is none.
    """

    root: Path
    names: tuple[str, ...]
    folder: str = ""
    why_not: Callable[[str], str] = lambda name: ""


class Line(Value):
    """One line for pip, and the place that it was read from: ``requirements.txt:3``.

    ``asked`` is what an index may be asked for; where it is None, ``why`` says why not, and
    ``name`` is the package's where the line has it.
    """

    text: str
    where: str
    asked: Requirement | None = None
    why: str = ""
    name: str = ""


class Option(Value):
    """An option for pip by its long name; ``value`` is empty for a switch."""

    name: str
    value: str
    where: str

    @property
    def text(self) -> str:
        return f"{self.name} {shlex.quote(self.value)}" if self.value else self.name


class Packages(Value):
    """A project's list of packages.

    ``python`` is the versions of Python that the project takes, as a specifier (``>=3.10``).
    ``folders`` are those, relative to where the command starts, that the project's own packages are
    imported from. ``left_out`` are packages that the image has in its own way. ``is_locked``: every
    line has its one version.
    """

    file: str
    lines: tuple[Line, ...]
    constraints: tuple[Line, ...] = ()
    options: tuple[Option, ...] = ()
    python: str = ""
    python_where: str = ""
    folders: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    is_locked: bool = False

    def text(self) -> str:
        """Return the list as a requirements file, each line below the place that it is from."""
        return _rows(self.options) + _rows(self.lines)

    def constraints_text(self) -> str:
        return _rows(self.constraints)


def _rows(lines: Iterable[Line | Option]) -> str:
    return "".join(f"# {one_line(line.where)}\n{line.text}\n" for line in lines)


def found_in(folder: Path) -> tuple[str, ...]:
    """Return the names of such files in ``folder``, the most exact first."""
    return tuple(name for name in KNOWN_NAMES if (folder / name).is_file())


def read_packages(sent: SentFiles, typed: str) -> Packages:
    """Read the file that ``typed`` names below the folder that the command starts in;
    ``pyproject.toml[train]`` takes one of its extras, too.

    Raises:
        DataError: it cannot be used; it names the line.
    """
    name, extras = split_extras(typed)
    base = PurePosixPath(name).name
    reader = _Reader(sent)
    if extras and base != "pyproject.toml":
        raise DataError("only pyproject.toml has extras", where=typed, next_step=f"--pip {name}")
    try:
        if base == "pyproject.toml":
            return _of_project(reader, name, extras)
        if base == "uv.lock":
            return _of_lock(reader, name)
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        raise DataError("its tables do not have the usual form", where=name) from None
    if base.endswith((".yml", ".yaml")):
        return _of_conda(reader, name)
    if base.endswith((".txt", ".in")) or "." not in base:
        reader.read(name)
        return reader.packages(name)
    raise DataError(
        "it is not a list of packages that pip can install",
        where=name,
        next_step=f"--pip takes {', '.join(KNOWN_NAMES)} and similar files",
    )


def split_extras(typed: str) -> tuple[str, tuple[str, ...]]:
    """``pyproject.toml[train,dev]`` → its name and its extras."""
    name, bracket, rest = typed.partition("[")
    if not bracket or not rest.endswith("]"):
        return typed, ()
    return name, tuple(extra.strip() for extra in rest[:-1].split(",") if extra.strip())


def names_variable(text: str) -> str:
    """Return the variables that pip would put in, as ``${A}, ${B}``; '' without one."""
    return ", ".join(f"${{{name}}}" for name in dict.fromkeys(_VARIABLE.findall(text)))


# -- requirements.txt ------------------------------------------------------------------------------


class _Reader:
    """Reads lists of a tree; names are relative to the folder that the command starts in."""

    def __init__(self, sent: SentFiles) -> None:
        self._folder, self._why_not_sent = sent.folder, sent.why_not
        self._root, self._sent = sent.root.resolve(), frozenset(sent.names)
        self._lines: list[Line] = []
        self._constraints: list[Line] = []
        self._options: list[Option] = []
        self._opened = 0

    def packages(self, name: str) -> Packages:
        return Packages(name, tuple(self._lines), tuple(self._constraints), tuple(self._options))

    def content(self, name: str, asked_by: str = "") -> str:
        """
        Raises:
            DataError: the file is none that is sent, or no text; it shows nothing of it.
        """
        self._opened += 1
        if self._opened > _MOST_FILES:
            raise DataError(f"it includes more than {_MOST_FILES} files", where=asked_by or name)
        place = self.inside(name, asked_by or name)
        path = self._root / place
        if place not in self._sent or _real(path) != path:
            why = self._why_not_sent(place) or "there is no such file"
            raise DataError(
                f"{one_line(name)} is not among the files that are sent: {why}",
                where=asked_by or name,
                next_step="--pip takes a file that is sent: without links, and not ignored",
            )
        try:
            with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
                return file.read(_MOST_BYTES).decode("utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            what = f"{one_line(name)} cannot be read: {reason}"
            raise DataError(what, where=asked_by or name) from None

    def inside(self, name: str, where: str) -> str:
        """Return the place in the tree of what a list names.

        Raises:
            DataError: it is outside, by its name or through a link.
        """
        place = posixpath.normpath(posixpath.join(self._folder, name))
        is_plain = not CONTROL.search(name) and not re.match(r"[\w+.-]+:", name)
        is_plain = is_plain and (place == "." or is_inside(place))
        if not is_plain or not _real(self._root / place).is_relative_to(self._root):
            raise DataError(
                f"{one_line(name)[:80]}: this path is outside the folder that is sent",
                where=where,
                next_step="use a path in that folder: ./libraries/mine; --root DIR sends more",
            )
        return place

    def read(self, name: str, *, constrains: bool = False, asked_by: tuple[str, ...] = ()) -> None:
        where = asked_by[-1] if asked_by else ""
        if len(asked_by) > _MOST_DEPTH:
            raise DataError("files include each other in a circle", where=where)
        for number, text in _joined(self.content(name, where)):
            self.take(text, (*asked_by, f"{name}:{number}"), constrains)

    def take(self, text: str, asked_by: tuple[str, ...], constrains: bool = False) -> None:
        """Take a line of a list; the last of ``asked_by`` is its place."""
        if not text.startswith("-"):
            self._add(self.line(text, asked_by[-1], constrains=constrains), constrains)
            return
        for flag, value in self._words(text, asked_by[-1], (*_WITH_VALUE, *_SWITCHES)):
            self.option(flag, value, asked_by, constrains)

    def option(
        self, flag: str, value: str, asked_by: tuple[str, ...], constrains: bool = False
    ) -> None:
        where = asked_by[-1]
        beside = posixpath.normpath(posixpath.join(posixpath.dirname(where), value))
        if flag in ("--requirement", "--constraint"):
            self.read(beside, constrains=constrains or flag == "--constraint", asked_by=asked_by)
        elif flag == "--editable":
            value = value if "/" in value or value.startswith(".") else f"./{value}"
            line = self.line(value, where, constrains=constrains)
            self._add(replace(line, text=f"-e {line.text}"), constrains)
        else:
            if flag in _OF_INDEXES and not _ADDRESS.fullmatch(value):
                # pip looks beside the list, then where it is started.
                there = self._root / self.inside(beside, where)
                value = beside if os.path.exists(there) else value
                self.inside(value, where)
            self._options.append(Option(flag, value, where))

    def _add(self, line: Line, constrains: bool) -> None:
        (self._constraints if constrains else self._lines).append(line)

    def own_folders(self, own: str, where: str) -> tuple[str, ...]:
        """Return the folders that a project's own packages are imported from, as by an editable
        install."""
        folders = (posixpath.normpath(own), posixpath.normpath(posixpath.join(own, "src")))
        places = [self._root / self.inside(each, where) for each in folders]
        return folders if os.path.isdir(places[1]) else folders[:1]

    def _words(self, text: str, where: str, known: Iterable[str]) -> Iterator[tuple[str, str]]:
        """Split a text of options into names and values.

        Raises:
            DataError: an option is not among those ``known``, or has no value.
        """
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise DataError(f"{one_line(text)[:80]}: {error}", where=where) from None
        while words:
            word = words.pop(0)
            flag, equals, value = word.partition("=")
            if word[:2] in _WITH_VALUE and len(word) > 2:
                flag, equals, value = word[:2], "=", word[2:].removeprefix("=")
            if flag not in known or (flag in _SWITCHES and equals):
                raise DataError(
                    f"{one_line(word)[:80]}: this option is not allowed in a requirements file",
                    where=where,
                    next_step="leave it out",
                )
            if flag not in _SWITCHES and not equals:
                value = words.pop(0) if words else ""
            if flag not in _SWITCHES and (not value or value.startswith("-")):
                raise DataError(f"{flag} has no value", where=where)
            yield _WITH_VALUE.get(flag, flag), value

    def line(self, text: str, where: str, *, constrains: bool = False) -> Line:
        """Return what ``text`` names.

        Raises:
            DataError: it is no requirement, or names a file that is not sent.
        """
        text = text.replace("\t", " ")
        if CONTROL.search(text):
            raise DataError("the line has control characters", where=where)
        named, dash, rest = re.sub(r" (?=-)", "\n", text, count=1).partition("\n")
        named = named.strip()
        options = {flag for flag, _ in self._words(rest, where, _OF_A_LINE)} if dash else set()
        try:
            asked = Requirement(named if len(named) < _MOST_CHARS else "")
        except (ValueError, RecursionError) as error:
            asked, reason = None, one_line(str(error)).split("    ")[0][:120]
        bare = re.sub(r"\s*;.*$", "", named)
        address = (asked.url or "") if asked is not None else bare
        is_path = "/" in bare or bare.startswith(".") or _ARCHIVE.fullmatch(bare)
        if asked is None and (constrains or not (is_path or _VCS.match(bare))):
            raise DataError(
                f"{one_line(named)[:80]!r} is not a requirement: {reason}",
                where=where,
                next_step="name==1.2, name>=1,<2, or name @ https://…",
            )
        why = self._why_not(address, where) if address else ""
        if variables := names_variable(text):
            why = f"it names {variables}"
        elif options - {"--hash"}:
            why = why or "its options apply to a build"
        egg = _NAME_IN.search(address)
        name = asked.name if asked is not None else (egg[1] or egg[2] if egg else "")
        return Line(text, where, None if why else asked, why, canonicalize_name(name))

    def _why_not(self, address: str, where: str) -> str:
        """Return why no index is asked for what stands at ``address``.

        Raises:
            DataError: it is a path outside the tree, or one that is not sent.
        """
        if _VCS.fullmatch(address):
            return "it is a repository"
        if _ADDRESS.fullmatch(address):
            return "it is a direct address"
        place = self.inside(re.sub(r"\[[^\]]*\]$", "", address.removeprefix("file:")), where)
        below = "" if place == "." else f"{place}/"
        if place not in self._sent and not any(name.startswith(below) for name in self._sent):
            raise DataError(
                f"{one_line(address)[:80]}: there is no such file among those that are sent",
                where=where,
            )
        return "it is in the tree"


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))  # Path.resolve fails at a link to itself


def _joined(text: str) -> Iterator[tuple[int, str]]:
    """(number, text) of each line that says something: continued ones as one, by their first."""
    begun, parts = 0, list[str]()
    for number, row in enumerate(text.splitlines(), start=1):
        is_comment = row.lstrip().startswith("#")
        begun = begun or number
        if row.endswith("\\") and not is_comment:
            parts.append(row[:-1])
            continue
        parts.append("" if is_comment else row)
        joined = re.sub(r"(^|\s)#.*$", "", "".join(parts)).strip()
        if joined:
            yield begun, joined
        begun, parts = 0, []
    if joined := "".join(parts).strip():
        yield begun, joined


# -- pyproject.toml --------------------------------------------------------------------------------


def _of_project(reader: _Reader, name: str, extras: Iterable[str]) -> Packages:
    text = reader.content(name)
    table = _toml(text, name)
    project = table.get("project")
    if not isinstance(project, dict):
        exporter = "poetry" if "poetry" in table.get("tool", {}) else "your tool"
        raise DataError(
            "it has no [project] table with packages",
            where=name,
            next_step=f"export them with {exporter} as requirements.txt, for --pip",
        )
    if "dependencies" in project.get("dynamic", ()):
        return _of_dynamic(reader, name, table)
    optional = {
        canonicalize_name(extra): rows
        for extra, rows in project.get("optional-dependencies", {}).items()
    }
    wanted, todo, taken = list(project.get("dependencies", ())), [*extras], set[str]()
    own = canonicalize_name(str(project.get("name", "")))
    lines = []
    while wanted or todo:
        if wanted:
            where = f"{name}:{_line_of(text, wanted[0])}"
            line = reader.line(wanted.pop(0), where)
            if line.name == own and line.asked is not None:  # mine[all]: more of its own extras
                todo += line.asked.extras
            else:
                lines.append(line)
        elif (extra := canonicalize_name(todo.pop(0))) not in optional:
            there = ", ".join(sorted(optional)) or "none"
            raise DataError(f"it has no extra {extra!r:.40}; it has {there}", where=name)
        elif extra not in taken:
            taken.add(extra)
            wanted += optional[extra]
    python = str(project.get("requires-python", ""))
    where = f"{name}:{_line_of(text, 'requires-python')}"
    _check_python(python, where)
    return Packages(
        name,
        tuple(lines),
        python=python,
        python_where=where,
        folders=reader.own_folders(posixpath.dirname(name) or ".", name),
    )


def _of_dynamic(reader: _Reader, name: str, table: Mapping[str, Any]) -> Packages:
    """Of a project whose packages setuptools reads from files."""
    dynamic = table.get("tool", {}).get("setuptools", {}).get("dynamic", {})
    files = dynamic.get("dependencies", {}).get("file", ())
    names = [files] if isinstance(files, str) else [str(file) for file in files]
    if not names:
        raise DataError(
            "its packages are only known once it is built (dynamic)",
            where=name,
            next_step="--pip requirements.txt",
        )
    own = posixpath.dirname(name)
    for file in names:
        reader.read(posixpath.normpath(posixpath.join(own, file)), asked_by=(name,))
    return replace(reader.packages(name), folders=reader.own_folders(own or ".", name))


def _check_python(python: str, where: str) -> None:
    try:
        takes(python[:_MOST_CHARS], "3.12")
    except InvalidSpecifier:
        raise DataError(f"{python[:60]!r} is not a version of Python", where=where) from None


def takes(specifier: str, python: str) -> bool:
    """Whether some patch release of ``python`` (``3.12``) is taken."""
    taken = SpecifierSet(specifier)
    return any(taken.contains(f"{python}.{patch}") for patch in range(40))


def _toml(text: str, name: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"it is not TOML: {error}", where=name) from None


def _line_of(text: str, words: str) -> int:
    """Return the number of the first line that has ``words``; 1 where none has."""
    return text[: max(0, text.find(words))].count("\n") + 1


# -- uv.lock ---------------------------------------------------------------------------------------


def _of_lock(reader: _Reader, name: str) -> Packages:
    """The project's packages at the versions of the lock, and all that these need, without groups
    for development and extras."""
    text = reader.content(name)
    table = _toml(text, name)
    rows = [row for row in table.get("package", ()) if isinstance(row, dict)]
    roots = [row for row in rows if {"editable", "virtual"} & set(row.get("source", {}))]
    top = [row for row in roots if "." in row["source"].values()] or roots
    if not top:
        raise DataError("it does not lock a project", where=name, next_step="uv lock")
    python = str(table.get("requires-python", ""))
    python_where = f"{name}:{_line_of(text, 'requires-python')}"
    _check_python(python, python_where)
    taken = [each for each in _PYTHONS if takes(python, each)]
    reached: dict[int, list[str]] = {}
    for each in taken:
        for at in _closure(rows, top, each):
            reached.setdefault(at, []).append(each)
    lines, folders, indexes = [], list[str](), dict[str, str]()
    for at in sorted(reached):
        row = rows[at]
        own_row = '\nname = "{}"\n'.format(row.get("name"))
        where = f"{name}:{_line_of(text, own_row) + 1}"
        source = row.get("source", {})
        local = source.get("editable") or source.get("virtual") or source.get("directory")
        if local is not None:
            folders += reader.own_folders(posixpath.join(posixpath.dirname(name), local), where)
            continue
        line = _locked(row, source)
        if reached[at] != taken:
            line += " ; " + " or ".join(f'python_version == "{each}"' for each in reached[at])
        lines.append(reader.line(line, where))
        if "registry" in source:
            indexes.setdefault(str(source["registry"]).rstrip("/"), where)
    # The first registry is the project's own; the others, as of torch's builds, are asked besides.
    has_public = indexes.pop(PUBLIC, None) is not None
    for at, (index, where) in enumerate(indexes.items()):
        flag = "--extra-index-url" if has_public or at else "--index-url"
        reader.option(flag, index, (where,))
    return replace(
        reader.packages(name),
        lines=tuple(lines),
        python=python,
        python_where=python_where,
        folders=tuple(dict.fromkeys(folders)),
        is_locked=True,
    )


def _locked(row: Mapping[str, Any], source: Mapping[str, Any]) -> str:
    if "git" in source:
        url, _, commit = str(source["git"]).partition("#")
        return f"{row['name']} @ git+{url.partition('?')[0]}@{commit}"
    if "url" in source:
        return f"{row['name']} @ {source['url']}"
    return f"{row.get('name', '')}=={row.get('version', '')}"


def _closure(rows: list[dict[str, Any]], top: list[dict[str, Any]], python: str) -> Iterable[int]:
    """Return the places in ``rows`` of the packages that ``top`` needs under ``python``."""
    environment = {**_ANY_LINUX, "python_version": python, "python_full_version": f"{python}.0"}
    by_name: dict[str, list[int]] = {}
    for at, row in enumerate(rows):
        by_name.setdefault(str(row.get("name")), []).append(at)
    todo = [(at, "") for at, row in enumerate(rows) if row in top]
    seen: set[tuple[int, str]] = set()
    while todo:
        at, extra = todo.pop()
        if (at, extra) in seen:
            continue
        seen.add((at, extra))
        row = rows[at]
        if extra:
            needs = row.get("optional-dependencies", {}).get(extra, ())
        else:
            needs = row.get("dependencies", ())
        for need in needs:
            if not _holds(str(need.get("marker", "")), environment):
                continue
            for other in by_name.get(str(need.get("name")), ()):
                version = need.get("version")
                if version is not None and version != rows[other].get("version"):
                    continue
                todo += [(other, each) for each in ("", *need.get("extra", ()))]
    return {at for at, _ in seen}


def _holds(marker: str, environment: dict[str, str]) -> bool:
    if not marker:
        return True
    try:
        return Marker(marker).evaluate(environment)
    except Exception:  # a marker of uv's own kind: what may be needed is installed
        return True


# -- environment.yml -------------------------------------------------------------------------------


def _of_conda(reader: _Reader, name: str) -> Packages:
    """Conda's own packages by the same name on the index, where there is one; those below ``pip:``
    as they are. Which names there are is seen as the list is resolved."""
    left_out = []
    python = python_where = ""
    section, pip_indent = "", -1
    for number, row in enumerate(reader.content(name).splitlines(), start=1):
        where = f"{name}:{number}"
        bare = re.sub(r"(^|\s)#.*$", "", row).rstrip()
        if not bare.strip():
            continue
        indent = len(bare) - len(bare.lstrip())
        item = bare.strip()
        if not item.startswith("-"):
            if indent == 0:
                section, pip_indent = item.partition(":")[0], -1
            continue
        if section != "dependencies":
            continue
        item = item[1:].strip().strip("'\"")
        if item == "pip:":
            pip_indent = indent
            continue
        if 0 <= pip_indent < indent:
            reader.take(item, (where,))
            continue
        pip_indent = -1
        package, version = _of_conda_item(item, where)
        if package == "python":
            python, python_where = version, where
        elif _OF_THE_IMAGE.fullmatch(package):
            left_out.append(package)
        else:
            reader.take(f"{_RENAMED.get(package, package)}{version}", (where,))
    _check_python(python, python_where)
    made = reader.packages(name)
    if not made.lines:
        raise DataError(
            "it does not name a package", where=name, next_step="dependencies: …, pip: …"
        )
    return replace(made, python=python, python_where=python_where, left_out=tuple(left_out))


def _of_conda_item(item: str, where: str) -> tuple[str, str]:
    """``numpy=1.26`` → ``numpy``, ``==1.26.*``: conda's single sign means a prefix."""
    match = _CONDA.fullmatch(item)
    if match is None:
        raise DataError(f"{one_line(item)[:80]!r} is not a package", where=where)
    name, version = match[1].lower(), match[3].strip()
    if match[2] or " " in version.replace(", ", ","):
        # A build of conda's, as in numpy=1.26=py311_0 or "numpy 1.26 *": pip knows none.
        version = version.split()[0] if version else ""
    version = version.replace(" ", "")
    if version.startswith("=") and not version.startswith("=="):
        number = version[1:].split("=")[0].rstrip(".*")
        version = f"=={number}.*"
    elif version and version[0].isdigit():
        version = f"=={version}"
    elif version.startswith("==") and "=" in version[2:]:
        version = "==" + version[2:].split("=")[0]
    return name, "" if version == "*" else version
