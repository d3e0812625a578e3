"""A project's own list of packages, in the forms that projects keep it in, as lines for pip.

``requirements.txt`` with all that it includes, ``pyproject.toml``, ``uv.lock`` and the part of
``environment.yml`` that pip can install become one flat list. A line that cannot be used is refused
with its file and number, before anything is rented.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import tomllib
from packaging.markers import InvalidMarker, Marker
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from trmcloud.core.errors import DataError
from trmcloud.core.text import one_line
from trmcloud.core.values import dataclass

KNOWN_NAMES = ("uv.lock", "requirements.txt", "pyproject.toml", "environment.yml")
"""The usual names of such files, the most exact first."""
_MOST_BYTES = 16 << 20
_MOST_DEPTH = 8
_PYTHONS = tuple(f"3.{minor}" for minor in range(9, 16))
"""The versions for which the markers of a lock are evaluated."""
_ANY_LINUX = {
    "sys_platform": "linux", "platform_system": "Linux", "os_name": "posix",
    "platform_machine": "x86_64", "implementation_name": "cpython",
    "platform_python_implementation": "CPython", "extra": "",
}  # fmt: skip
_PASSED_ON = {
    "-i": "--index-url", "--index-url": "--index-url", "--extra-index-url": "--extra-index-url",
    "-f": "--find-links", "--find-links": "--find-links", "--trusted-host": "--trusted-host",
    "--no-index": "", "--pre": "", "--prefer-binary": "", "--only-binary": "--only-binary",
    "--no-binary": "--no-binary", "--require-hashes": "",
}  # fmt: skip
"""Options of a requirements file that pip is given as they are; by name, their long form, empty for
those without a value."""
_INCLUDED = {"-r": False, "--requirement": False, "-c": True, "--constraint": True}
_PER_LINE = re.compile(r"\s--(hash|config-settings?|global-option|no-deps)\b")
_PATH = re.compile(r"(\.{1,2}(/|$)|/|file:|[^\s=<>!~;\[@]+\.(whl|tar\.gz|zip)$)")
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


@dataclass(frozen=True)
class Line:
    """One line for pip, and the place that it was read from: ``requirements.txt:3``."""

    text: str
    where: str


@dataclass(frozen=True)
class Packages:
    """A project's list of packages.

    ``python`` is the versions of Python that the project takes, as a specifier (``>=3.10``).
    ``folders`` are those, relative to where the command starts, that the project's own packages are
    imported from. ``left_out`` are packages that the image has in its own way.
    """

    file: str
    lines: tuple[Line, ...]
    constraints: tuple[Line, ...] = ()
    options: tuple[Line, ...] = ()
    python: str = ""
    python_where: str = ""
    folders: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    def text(self) -> str:
        """Return the list as a requirements file, each line below the place that it is from."""
        rows = [row for line in (*self.options, *self.lines) for row in _told(line)]
        return "".join(f"{row}\n" for row in rows)

    def constraints_text(self) -> str:
        return "".join(f"{row}\n" for line in self.constraints for row in _told(line))


def _told(line: Line) -> tuple[str, str]:
    return f"# {line.where}", line.text


def found_in(folder: Path) -> tuple[str, ...]:
    """Return the names of such files in ``folder``, the most exact first."""
    return tuple(name for name in KNOWN_NAMES if (folder / name).is_file())


def read_packages(folder: Path, typed: str) -> Packages:
    """Read the file that ``typed`` names below ``folder``; ``pyproject.toml[train]`` takes one of
    its extras, too.

    Raises:
        DataError: it cannot be used; it names the line.
    """
    name, extras = split_extras(typed)
    base = PurePosixPath(name).name
    if base == "pyproject.toml":
        return _of_project(folder, name, extras)
    if extras:
        raise DataError("only pyproject.toml has extras", where=typed, next_step=f"--pip {name}")
    if base == "uv.lock":
        return _of_lock(folder, name)
    if base.endswith((".yml", ".yaml")):
        return _of_conda(folder, name)
    if base.endswith((".txt", ".in")) or "." not in base:
        reader = _PipFile(folder)
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


def _content(folder: Path, name: str, asked_by: str = "") -> str:
    path = folder / name
    try:
        with open(path, "rb") as file:
            return file.read(_MOST_BYTES).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise DataError(f"{name} cannot be read: {reason}", where=asked_by or name) from None


# -- requirements.txt ------------------------------------------------------------------------------


class _PipFile:
    """A requirements file with all that it includes; paths are those below ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lines: list[Line] = []
        self._constraints: list[Line] = []
        self._options: list[Line] = []

    def packages(self, name: str) -> Packages:
        return Packages(name, tuple(self._lines), tuple(self._constraints), tuple(self._options))

    def read(
        self, name: str, *, constrains: bool = False, asked_by: str = "", depth: int = 0
    ) -> None:
        if depth > _MOST_DEPTH:
            raise DataError("files include each other in a circle", where=asked_by)
        for number, text in _joined(_content(self._folder, name, asked_by)):
            where = f"{name}:{number}"
            if text.startswith("-"):
                self.option(text, name, where, depth, constrains=constrains)
            else:
                line = Line(checked_line(text, where, self._folder), where)
                (self._constraints if constrains else self._lines).append(line)

    def option(self, text: str, name: str, where: str, depth: int, *, constrains: bool) -> None:
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise DataError(f"{one_line(text)[:80]}: {error}", where=where) from None
        flag, _, value = words[0].partition("=")
        if flag[:2] in ("-r", "-c", "-e", "-i", "-f") and len(flag) > 2 and flag[1] != "-":
            flag, value = flag[:2], flag[2:] + value
        value = value or " ".join(words[1:])
        if flag in _INCLUDED and value:
            included = (PurePosixPath(name).parent / value).as_posix()
            self.read(
                included,
                constrains=constrains or _INCLUDED[flag],
                asked_by=where,
                depth=depth + 1,
            )
        elif flag in ("-e", "--editable") and value:
            self._lines.append(Line(f"-e {checked_line(value, where, self._folder)}", where))
        elif flag in _PASSED_ON:
            long = _PASSED_ON[flag]
            self._options.append(Line(f"{long} {value}" if long else flag, where))
        else:
            raise DataError(
                f"{one_line(text)[:80]}: this option is not allowed in a requirements file",
                where=where,
                next_step="leave it out",
            )


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


def checked_line(text: str, where: str, folder: Path) -> str:
    """Return ``text`` as pip takes it.

    Raises:
        DataError: it is no requirement, or names a file that is not there.
    """
    if _PATH.match(text) and " @ " not in text:
        path = re.sub(r"(\[[^\]]*\]|;.*|^file:)", "", text).strip()
        if not Path(path).is_absolute() and not (folder / path).exists():
            raise DataError(f"{one_line(text)[:80]}: there is no such file here", where=where)
        if Path(path).is_absolute():
            raise DataError(
                f"{one_line(text)[:80]}: this path is on this machine and is not sent",
                where=where,
                next_step="use a path in the folder that is sent: ./libraries/mine",
            )
        return text
    if re.match(r"(git|hg|svn|bzr)\+|https?://", text):
        return text
    named = _PER_LINE.split(f" {text}", maxsplit=1)[0].strip()
    try:
        Requirement(named)
    except (InvalidRequirement, InvalidMarker) as error:
        why = one_line(str(error)).split("    ")[0][:120]
        raise DataError(
            f"{one_line(named)[:80]!r} is not a requirement: {why}",
            where=where,
            next_step="name==1.2, name>=1,<2, or name @ https://…",
        ) from None
    return text


# -- pyproject.toml --------------------------------------------------------------------------------


def _of_project(folder: Path, name: str, extras: Iterable[str]) -> Packages:
    text = _content(folder, name)
    table = _toml(text, name)
    project = table.get("project")
    own = PurePosixPath(name).parent.as_posix()
    if not isinstance(project, dict):
        exporter = "poetry" if "poetry" in table.get("tool", {}) else "your tool"
        raise DataError(
            "it has no [project] table with packages",
            where=name,
            next_step=f"export them with {exporter} as requirements.txt, for --pip",
        )
    wanted: list[str] = [str(each) for each in project.get("dependencies", ())]
    if "dependencies" in project.get("dynamic", ()):
        return _of_dynamic(folder, name, table)
    optional = {
        canonicalize_name(extra): rows
        for extra, rows in project.get("optional-dependencies", {}).items()
    }
    for extra in extras:
        if canonicalize_name(extra) not in optional:
            there = ", ".join(sorted(optional)) or "none"
            raise DataError(f"it has no extra {extra!r:.40}; it has {there}", where=name)
        wanted += [str(each) for each in optional[canonicalize_name(extra)]]
    lines = []
    for each in wanted:
        where = f"{name}:{_line_of(text, each)}"
        lines.append(Line(checked_line(each, where, folder), where))
    python = str(project.get("requires-python", ""))
    where = f"{name}:{_line_of(text, 'requires-python')}"
    _check_python(python, where)
    return Packages(
        name, tuple(lines), python=python, python_where=where, folders=_own_folders(folder, own)
    )


def _of_dynamic(folder: Path, name: str, table: Mapping[str, Any]) -> Packages:
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
    reader = _PipFile(folder)
    own = PurePosixPath(name).parent
    for file in names:
        reader.read((own / file).as_posix(), asked_by=name)
    made = reader.packages(name)
    return Packages(
        name, made.lines, made.constraints, made.options,
        folders=_own_folders(folder, own.as_posix()),
    )  # fmt: skip


def _own_folders(folder: Path, own: str) -> tuple[str, ...]:
    """Return the folders that a project's own packages are imported from, as by an editable
    install."""
    inner = (PurePosixPath(own) / "src").as_posix()
    return (own, inner) if (folder / inner).is_dir() else (own,)


def _check_python(python: str, where: str) -> None:
    try:
        SpecifierSet(python)
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
    rows = text.splitlines()
    return next((number for number, row in enumerate(rows, start=1) if words in row), 1)


# -- uv.lock ---------------------------------------------------------------------------------------


def _of_lock(folder: Path, name: str) -> Packages:
    """The project's packages at the versions of the lock, and all that these need, without groups
    for development and extras."""
    text = _content(folder, name)
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
    own = PurePosixPath(name).parent
    for at in sorted(reached):
        row, where = rows[at], f"{name}:{_line_of_package(text, rows[at])}"
        source = row.get("source", {})
        local = source.get("editable") or source.get("virtual") or source.get("directory")
        if local is not None:
            folders += _own_folders(folder, (own / str(local)).as_posix())
            continue
        line = _locked(row, source)
        if reached[at] != taken:
            line += " ; " + " or ".join(f'python_version == "{each}"' for each in reached[at])
        lines.append(Line(checked_line(line, where, folder), where))
        if "registry" in source:
            indexes.setdefault(str(source["registry"]), where)
    # The first registry is the project's own; the others, as of torch's builds, are asked besides.
    options = tuple(
        Line(f"--extra-index-url {index}", where) for index, where in list(indexes.items())
    )
    return Packages(
        name,
        tuple(lines),
        options=options if len(options) > 1 else (),
        python=python,
        python_where=python_where,
        folders=tuple(dict.fromkeys(folders)),
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


def _line_of_package(text: str, row: Mapping[str, Any]) -> int:
    named = f'name = "{row.get("name")}"'
    rows = text.splitlines()
    return next((number for number, each in enumerate(rows, start=1) if each == named), 1)


# -- environment.yml -------------------------------------------------------------------------------


def _of_conda(folder: Path, name: str) -> Packages:
    """Conda's own packages by the same name on the index, where there is one; those below ``pip:``
    as they are. Which names there are is seen as the list is resolved."""
    lines, left_out = [], []
    reader = _PipFile(folder)
    python = python_where = ""
    section, pip_indent = "", -1
    for number, row in enumerate(_content(folder, name).splitlines(), start=1):
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
            if item.startswith("-"):
                reader.option(item, name, where, 0, constrains=False)
            else:
                lines.append(Line(checked_line(item, where, folder), where))
            continue
        pip_indent = -1
        package, version = _of_conda_item(item, where)
        if package == "python":
            python, python_where = version, where
        elif _OF_THE_IMAGE.fullmatch(package):
            left_out.append(package)
        else:
            text = f"{_RENAMED.get(package, package)}{version}"
            lines.append(Line(checked_line(text, where, folder), where))
    _check_python(python, python_where)
    made = reader.packages(name)
    if not lines and not made.lines:
        raise DataError(
            "it does not name a package", where=name, next_step="dependencies: …, pip: …"
        )
    return Packages(
        name,
        (*made.lines, *lines),
        made.constraints,
        made.options,
        python,
        python_where,
        left_out=tuple(left_out),
    )


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
