"""Whether a project's packages can be installed together, asked of uv before anything is rented.

uv chooses for Linux on x86-64, without building anything (``uv pip compile --no-build``): none of a
package's code is run here. It runs apart from the user's keys (``io/children``), in an empty folder
with two files made here of what ``requirement_files`` took for names with versions. What it cannot
say is no refusal: without a network, or of what has to be built, the choice is left to the machine.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import tempfile
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from packaging.utils import canonicalize_name

from trmcloud.core.contract.pod_contract import ENV_INSTALL_PREFIX
from trmcloud.core.errors import DataError
from trmcloud.core.text import one_line
from trmcloud.core.values import Value, replace
from trmcloud.io.children import ReaderStopped, find_program, reader_environment, run_reader
from trmcloud.io.installation import install_command
from trmcloud.operations.sending.package_indexes import user_indexes, why_unknown
from trmcloud.operations.sending.requirement_files import PUBLIC, Packages, takes

USUAL_PYTHON = "3.12"
"""Of a machine whose Python is not known here."""
_PLATFORM = "x86_64-manylinux_2_28"
_WITHIN_S = 90.0
_MOST_TRIES = 12
_NAME = r"`?([A-Za-z0-9][A-Za-z0-9._-]*)"
_NO_WHEEL = re.compile(
    rf"Wheels are (?:required|available) for {_NAME}|only found wheels for {_NAME}"
    rf"|{_NAME}[^ ]* ha(?:s|ve) no (?:usable )?wheels"
)
_OTHER_PYTHON = re.compile(
    rf"Python version \([^)]*\) does not satisfy Python(\S+?),? and (?:all versions of )?{_NAME}"
)
_NOT_FOUND = re.compile(rf"{_NAME} was not found in ")
_NO_VERSION = re.compile(
    rf"(?:no versions? of|available(?: for \S+)? and you require) {_NAME}[=<>!~^]"
)
_NO_LOGIN = "could not be queried"
_NO_NETWORK = re.compile(
    r"Failed to (fetch|download)|error sending request|Request failed|timed out"
)
_NO_TRUST = re.compile(r"UnknownIssuer|invalid peer certificate|certificate verify")
_OTHER_REASONS = re.compile(r"[Pp]re-release|yanked|metadata|unusable|URL")


class ResolvedPackages(Value):
    """``versions`` is ``name==version`` of each package that would be installed, as far as they are
    known here. ``unpinned`` are the others, a place or a name with the reason; ``unknown`` is the
    reason where none is known. ``own_index`` is the user's, where a rented machine asks another."""

    versions: tuple[str, ...] = ()
    unpinned: tuple[tuple[str, str], ...] = ()
    unknown: str = ""
    own_index: str = ""


def resolve(
    packages: Packages,
    root: Path,
    python: str = "",
    passed: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
) -> ResolvedPackages:
    """Ask uv whether ``packages`` can be installed together.

    Args:
        root: the tree, of which no program is started.
        python: the version of this machine's Python, if it is the one that they are installed on;
            empty where the machine's is not known here.
        passed: the variables that the machine gets (``--env``).
        environ: this process's variables by default.

    Raises:
        DataError: they cannot, or the project does not take this Python; it names the line.
    """
    _check_python(packages, python)
    environ = os.environ if environ is None else environ
    length = len(ENV_INSTALL_PREFIX)
    for_machine = {k[length:]: v for k, v in environ.items() if k.startswith(ENV_INSTALL_PREFIX)}
    mine, environ = environ, {**environ, **for_machine}  # the index that the machine is to ask
    made = _Question(packages, root, python, passed, environ).answer()
    own = user_indexes(mine).text()
    is_asked = own == user_indexes(environ).text() and not python
    if own == PUBLIC or any(option.name == "--index-url" for option in packages.options):
        is_asked = False
    return replace(made, own_index=own) if is_asked else made


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


class _Question:
    """One list, and what is known of it after each answer of uv."""

    def __init__(
        self,
        packages: Packages,
        root: Path,
        python: str,
        passed: Collection[str],
        environ: Mapping[str, str],
    ) -> None:
        self._packages, self._root, self._environ = packages, root.resolve(), environ
        self._python, self._passed = python, passed
        self._asked = [line for line in packages.lines if line.asked is not None]
        self._indexes = user_indexes(environ).with_options(packages.options)
        self._system_certificates = False
        self._deadline = time.monotonic() + _WITHIN_S
        every = (*packages.lines, *packages.constraints)
        self._without = {line.name: line.why for line in every if line.name and line.why}
        """Names that no index is asked for, with the reason."""

    def answer(self) -> ResolvedPackages:
        """
        Raises:
            DataError: the packages cannot be installed together.
        """
        packages = self._packages
        if packages.is_locked:
            pins = (f"{line.name}=={one_line(str(line.asked.specifier))[2:]}"
                    for line in packages.lines if line.asked is not None)  # fmt: skip
            return self._made(sorted(set(pins)))
        if not self._asked:
            return self._made(())
        unknown = why_unknown(packages.options)
        for option in packages.options:
            names = option.value.split(",") if option.name == "--no-binary" else ()
            if ":all:" in names:
                unknown = unknown or f"{option.where} has everything built on the machine"
            self._without |= {canonicalize_name(name): "--no-binary names it" for name in names}
        if not unknown and self._program() is None:
            unknown = f"uv is not installed here: {install_command('packages')}"
        for _ in range(0 if unknown else _MOST_TRIES):
            wanted = [line for line in self._asked if line.name not in self._without]
            if not wanted:
                return self._made(())
            versions, said = self._ask([str(line.asked) for line in wanted])
            if versions is not None:
                return self._made(versions)
            if unknown := self._learn(said):
                break
        return replace(self._made(()), unknown=self._hinted(unknown or "uv finds no end"))

    def _learn(self, said: str) -> str:
        """Note what ``said`` excludes, for another try; return the reason if there is to be none.

        Raises:
            DataError: by what it says the packages cannot be installed.
        """
        if _NO_TRUST.search(said) and not self._system_certificates:
            self._system_certificates = True  # as pip: a company's root is in the system's store
            return ""
        if "unexpected argument" in said:
            return f"this uv is too old: {install_command('packages')}"
        if "No solution found" not in said:
            why = "the index cannot be reached" if _NO_NETWORK.search(said) else ""
            why = "the index's certificate is not trusted" if _NO_TRUST.search(said) else why
            return why or re.sub(r"//[^/@ ]*@", "//", one_line(said))[:200] or "uv gave no reason"
        needs_build = {next(filter(None, found)) for found in _NO_WHEEL.findall(said)}
        if self._leave_out(needs_build, "it has no prebuilt package"):
            return ""
        if (other := _OTHER_PYTHON.search(said)) is not None:
            if self._python:
                raise DataError(
                    f"{other[2]} has no build for Python {self._python}: it needs {other[1]}",
                    where=self._place_of(other[2]),
                    next_step="use another version, or an image with another Python",
                )
            if self._leave_out([other[2]], f"it needs Python {other[1]}"):
                return ""
        if (missing := _NOT_FOUND.search(said)) is not None:
            return self._check_missing(missing[1])
        if (lacking := _NO_VERSION.search(said)) is not None and self._check_version(lacking[1]):
            return ""
        if _OTHER_REASONS.search(said):
            return one_line(said)[:200]
        because = said.partition("ecause ")[2].partition(", we can conclude that your req")[0]
        raise DataError(
            f"its packages conflict: {one_line(because)[:300]}",
            where=self._place_of(because),
            next_step="allow another version of one of them",
        )

    def _leave_out(self, names: Iterable[str], why: str) -> bool:
        """Ask no more for these; false where that is nothing new."""
        fresh = {canonicalize_name(name): why for name in names}.items() - self._without.items()
        self._without |= {name: why for name, why in fresh if name not in self._without}
        return bool(fresh)

    def _check_missing(self, name: str) -> str:
        """Return why it is not known whether the index has a package; leave out one for which it
        wants a login.

        Raises:
            DataError: it has none of that name.
        """
        found, said = self._ask([name], alone=True)
        if _NO_LOGIN in said and self._leave_out([name], "the index wants a login"):
            return ""
        if found is not None or not _NOT_FOUND.search(said):
            return f"{self._indexes.text()} answers differently each time"
        raise DataError(
            f"there is no package {name} on the index, {self._indexes.text()}",
            where=self._place_of(name),
            next_step="use its name on the index; for a repository: name @ git+https://…",
        )

    def _check_version(self, name: str) -> bool:
        """Leave out a package of which no version is known here; false where this is no question of
        its versions alone.

        Raises:
            DataError: the index has no version of it that the list takes.
        """
        pins = dict(pin.split("==") for pin in self._ask([name], alone=True)[0] or ())
        newest = pins.get(canonicalize_name(name))
        if newest is None:
            return self._leave_out([name], "it has no prebuilt package")
        for line in self._asked:
            asked = line.asked if line.name == canonicalize_name(name) else None
            if asked is not None and not asked.specifier.contains(newest, prereleases=True):
                raise DataError(
                    f"there is no {asked} on the index, {self._indexes.text()}; "
                    f"the newest is {newest}",
                    where=line.where,
                    next_step=f"{name}=={newest}, or a range that includes it",
                )
        return False

    def _ask(
        self, wanted: Iterable[str], *, alone: bool = False
    ) -> tuple[tuple[str, ...] | None, str]:
        """Return what uv chooses for ``wanted``, or None and what it says.

        Args:
            alone: without the list's constraints, and by uv's own order of indexes, in which it
                says that an index wants a login.
        """
        program = self._program()
        assert program is not None
        words = [program, "pip", "compile", "--no-build", "--no-config", "--python", sys.executable]
        words += ["--no-header", "--no-annotate", "--no-progress", "--quiet", "--color", "never"]
        # As pip, which takes the best version of all indexes; uv would take the first's.
        words += ["--index-strategy", "first-index" if alone else "unsafe-best-match"]
        if self._python:
            words += ["--python-version", self._python]
        else:
            words += ["--python-version", self._usual_python(), "--python-platform", _PLATFORM]
        if any(option.name == "--pre" for option in self._packages.options):
            words += ["--prerelease", "allow"]
        fixed = [] if alone else [line.asked for line in self._packages.constraints]
        files = {
            "packages.txt": wanted,
            "constraints.txt": map(str, filter(None, fixed)),
            "excludes.txt": () if alone else self._without,
        }
        with tempfile.TemporaryDirectory(prefix="trmcloud-uv-") as made:
            for name, rows in files.items():
                (Path(made) / name).write_text("".join(f"{row}\n" for row in rows))
            words += ["-c", "constraints.txt", "--excludes", "excludes.txt", "packages.txt"]
            left_s = max(1.0, self._deadline - time.monotonic())
            variables = self._variables(made)
            try:
                ended = run_reader(
                    words, most_s=left_s, folder=Path(made), environment=variables
                )  # fmt: skip
            except (ReaderStopped, OSError):
                return None, "it timed out"
        if ended.code == 0:
            listed = re.findall(r"(?m)^[A-Za-z0-9][A-Za-z0-9._-]*==[^\s;]+", ended.out.decode())
            return tuple(sorted(listed)), ""
        said = ended.err.decode(errors="replace")
        return None, " ".join(re.sub(r"[×╰─▶│├]", " ", said).split())  # uv's drawing, and lines

    def _variables(self, home: str) -> dict[str, str]:
        """Return uv's environment: no file of the user's is found from ``home``."""
        mine = self._environ.get("HOME") or os.path.expanduser("~")
        usual = self._environ.get("XDG_CACHE_HOME") or os.path.join(mine, ".cache")
        cache = Path(self._environ.get("UV_CACHE_DIR") or os.path.join(usual, "uv"))
        is_ours = cache.is_absolute() and not cache.resolve().is_relative_to(self._root)
        also = {
            "HOME": home,
            "UV_HTTP_RETRIES": "1",
            "UV_PYTHON_DOWNLOADS": "never",
            **({"UV_CACHE_DIR": str(cache)} if is_ours else {"UV_NO_CACHE": "1"}),
            **self._indexes.environment(),
        }
        if self._system_certificates:
            also |= {"UV_SYSTEM_CERTS": "1", "UV_NATIVE_TLS": "1"}  # its name before 0.11
        return reader_environment(self._environ, also)

    def _program(self) -> str | None:
        """Return the uv of this installation, or one on PATH that is not in the tree."""
        path = self._environ.get("PATH", os.defpath).split(os.pathsep)
        path = [each for each in path if not Path(each).resolve().is_relative_to(self._root)]
        return find_program("uv", sysconfig.get_path("scripts")) or find_program(
            "uv", os.pathsep.join(path)
        )

    def _usual_python(self) -> str:
        """Return the usual Python, or the newest one below it that the project takes."""
        for minor in range(int(USUAL_PYTHON.partition(".")[2]), 7, -1):
            if takes(self._packages.python, f"3.{minor}"):
                return f"3.{minor}"
        return USUAL_PYTHON

    def _made(self, versions: Sequence[str]) -> ResolvedPackages:
        rows = [(line.where, line.why) for line in self._packages.lines if line.asked is None]
        told = {line.name for line in self._packages.lines if line.asked is None}
        fixed = {line.name for line in self._packages.constraints} - {x.name for x in self._asked}
        for name, why in self._without.items():
            if name not in told | fixed:
                rows.append((name, why))
        return ResolvedPackages(
            tuple(versions), tuple((place, self._hinted(why)) for place, why in rows)
        )

    def _hinted(self, why: str) -> str:
        """Return the reason, with the way to give the machine the variables that it names."""
        names = [name for name in re.findall(r"\$\{(\w+)\}", why) if name not in self._passed]
        options = " ".join(f"--env {name}" for name in names)
        return f"{why}; {options} sets it on the machine" if names else why

    def _place_of(self, said: str) -> str:
        """Return the line that a message is about; the file's name where none is found."""
        for line in self._packages.lines:
            if line.name and re.search(rf"(?i)(?<![\w.-]){line.name}(?![\w-])", said):
                return line.where
        return self._packages.file
