"""Which of the trainer's packages a machine lacks, and where they are put.

Where the image has a torch that a Python of ours can import, what else is lacking goes into a
folder ahead of the image's packages: no image's policy about its system packages is in the way, and
its torch stays. Where it has none, or its Python is too old for the trainer, a whole environment is
made: a Python of uv's, torch, and the rest. Both lie below the pod's root, where a volume carries
them to the next pod, and appear under their name only when they are whole, so that a killed
installation leaves nothing half done.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from trmcloud.core.contract.pod_contract import ENV_INSTALL_PREFIX

LIST = Path(__file__).with_name("environment.txt")
PYTHON = "3.12"
"""Of an environment of our own. uv's build of it brings the headers that Triton compiles with."""
OLDEST_PYTHON = (3, 11)
"""The oldest version that the trainer runs on."""

_HASH = re.compile(r"  ([0-9a-f]{64})")
_TOOL = "uv"
"""Of the list, what is no package of the trainer's, but makes an environment."""
_LINE = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)==([0-9][0-9.]*)\s+#\s*(\S+)")
_BOUND = re.compile(r"(>=|<)([0-9]+(?:\.[0-9]+)*)")


class Package(NamedTuple):
    """``pin`` is what is installed where nothing within ``bounds`` is there: a file that has one of
    ``hashes`` (SHA-256), or any where there are none."""

    name: str
    pin: str
    bounds: tuple[tuple[str, tuple[int, ...]], ...]
    hashes: tuple[str, ...] = ()

    @property
    def requirement(self) -> str:
        """A line of a requirements file."""
        return " ".join((f"{self.name}=={self.pin}", *(f"--hash=sha256:{h}" for h in self.hashes)))

    def accepts(self, version: str) -> bool:
        """Whether a version is in range; of its number, only the leading digits count."""
        match = re.match(r"\d+(\.\d+)*", version)
        if match is None:
            return False
        release = _padded(match[0])
        for sign, bound in self.bounds:
            if sign == ">=" and release < bound:
                return False
            if sign == "<" and release >= bound:
                return False
        return True


def read_list(text: str, torch: str = "") -> tuple[Package, ...]:
    """Read the list of packages that a trainer imports. ``torch``: another version of it to be
    installed.

    Raises:
        ValueError: a line that is neither ``name==pin  # bounds``, nor a hash below one, nor a
            comment.
    """
    return tuple(package for package in _read(text, torch) if package.name != _TOOL)


def _read(text: str, torch: str = "") -> list[Package]:
    packages: list[Package] = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if packages and (sha256 := _HASH.fullmatch(line)):
            last = packages[-1]
            packages[-1] = last._replace(hashes=(*last.hashes, sha256[1]))
            continue
        match = _LINE.fullmatch(line.strip())
        if match is None:
            raise ValueError(f"environment.txt: {line!r}")
        bounds = []
        for part in match[3].split(","):
            bound = _BOUND.fullmatch(part)
            if bound is None:
                raise ValueError(f"environment.txt: {line!r}")
            bounds.append((bound[1], _padded(bound[2])))
        pin = torch if torch and match[1] == "torch" else match[2]
        packages.append(Package(match[1], pin, tuple(bounds)))
    return packages


def missing(wanted: Iterable[Package], path: Sequence[str] | None = None) -> tuple[Package, ...]:
    """Those that are not importable in a good version from ``path`` (this interpreter's own)."""
    lacking = []
    for package in wanted:
        first = installed(package.name, path)
        if first is None or not package.accepts(first):
            lacking.append(package)
    return tuple(lacking)


def installed(name: str, path: Sequence[str] | None = None) -> str | None:
    """The version of what an import from ``path`` (this interpreter's own) would meet."""
    searched = list(path if path is not None else sys.path)
    found = importlib.metadata.distributions(name=name, path=searched)
    return next((dist.version for dist in found if dist.version), None)


def needs_python(lacking: Iterable[Package]) -> bool:
    """Whether this Python can be no trainer's: it is too old, or no torch is installed for it."""
    return sys.version_info < OLDEST_PYTHON or any(package.name == "torch" for package in lacking)


def pinned_torch(path: Path, environ: Mapping[str, str]) -> str:
    """Return the torch that would be installed: the user's choice, else the list's pin; '' where
    the list at ``path`` has none or cannot be read."""
    chosen = environ.get(ENV_INSTALL_PREFIX + "TORCH", "")
    try:
        wanted = read_list(path.read_text(encoding="utf-8"), chosen)
    except (OSError, ValueError):
        return ""
    return next((package.pin for package in wanted if package.name == "torch"), "")


def names_index(environ: Mapping[str, str]) -> bool:
    """Whether the user says where torch comes from: by an index, or uv's own choice of build."""
    names = ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_TORCH_BACKEND", "UV_INDEX_URL")
    return any(ENV_INSTALL_PREFIX + name in environ for name in names)


def folder_for(root: Path, packages: Sequence[Package], python: str = "", build: str = "") -> Path:
    """Return the folder of just these packages: for just this Python on this kind of machine, or
    with the ``python`` that comes with them, and with that ``build`` of torch where it was chosen
    for the machine."""
    words = [
        f"{python} {platform.machine()}" if python else sys.implementation.cache_tag or "",
        sys.platform,
        *([build] if build else ()),
        *(f"{p.name}=={p.pin}" for p in packages),
    ]
    return root / "env" / hashlib.sha256("\n".join(words).encode()).hexdigest()[:16]


_FROM_STDIN = 'wanted=$1; shift; printf "%s\\n" "$wanted" | "$@" -r /dev/stdin'


def install_command(
    packages: Sequence[Package], target: Path, environ: Mapping[str, str]
) -> list[str]:
    """pip's command line: the pins and nothing else, ready-built, into an empty folder."""
    return [
        *("sh", "-c", _FROM_STDIN, "sh", requirements(packages, environ)),
        *(sys.executable, "-m", "pip", "install", "--target", str(target), "--no-deps"),
        *("--only-binary", ":all:", "--no-input", "--disable-pip-version-check"),
        *("--no-warn-script-location", "--progress-bar", "off", "--retries", "3"),
    ]


def requirements(packages: Iterable[Package], environ: Mapping[str, str]) -> str:
    """A requirements file. pip and uv refuse any file that has none of the hashes in it, unless the
    user's own index is said to serve others (``TRMCLOUD_INSTALL_HASHES=off``)."""
    if environ.get(ENV_INSTALL_PREFIX + "HASHES") == "off":
        packages = [package._replace(hashes=()) for package in packages]
    return "\n".join(package.requirement for package in packages)


_WHOLE = """\
set -e
uv=$1 python=$2 tools=$3 target=$4 torch=$5 wanted=$6 tool=$7
if [ -z "$uv" ]; then
    "$python" -c 'import pip' 2>/dev/null ||
        { echo "error: this image has neither uv nor pip to install with" >&2; exit 6; }
    printf '%s\n' "$tool" | "$python" -m pip install --target "$tools" --upgrade \\
        --only-binary :all: --no-input --disable-pip-version-check --progress-bar off \\
        -r /dev/stdin
    uv=$tools/bin/uv
fi
"$uv" venv --no-config --relocatable "$target"
install() { "$uv" pip install --no-config --only-binary :all: --python "$target/bin/python" "$@"; }
printf '%s\n' "$wanted" | install --no-deps -r -
install "$torch"
rm -rf "$UV_CACHE_DIR"
"""


def whole_command(
    packages: Sequence[Package], target: Path, environ: Mapping[str, str]
) -> list[str]:
    """Makes an environment that needs nothing of the image but ``sh``, and uv or pip: a Python,
    torch with all that it needs, and the other pins. uv itself checks the Python that it fetches;
    torch, and what torch alone needs, is its index's word."""
    # torch last: of what it needs, the pins are there by then.
    torch = [package for package in packages if package.name == "torch"]
    rest = [package for package in packages if package.name != "torch"]
    return [
        *("sh", "-c", _WHOLE, "sh"),
        *(find_uv(environ), sys.executable, str(target.parent / ".uv"), str(target)),
        requirements(torch, environ),
        requirements(rest, environ),
        requirements([tool for tool in _read(LIST.read_text()) if tool.name == _TOOL], environ),
    ]


def find_uv(environ: Mapping[str, str]) -> str:
    """The uv that is on the machine; '' without one. SkyPilot puts it into its user's home."""
    homes = (environ.get(name) for name in ("TRMCLOUD_SKY_HOME", "HOME"))
    paths = [f"{home}/.local/bin" for home in homes if home]
    found = shutil.which("uv", path=os.pathsep.join([*paths, environ.get("PATH", os.defpath)]))
    return found or ""


def install_environment(
    environ: Mapping[str, str], target: Path, build: str = ""
) -> dict[str, str]:
    """Return the environment of an installation. The image's own settings of uv do not count, the
    user's do: ``TRMCLOUD_INSTALL_UV_DEFAULT_INDEX`` becomes ``UV_DEFAULT_INDEX``, and so on. uv
    takes torch from the index of ``build``, such as cu118."""
    made = {k: v for k, v in environ.items() if not k.startswith(("UV_", "VIRTUAL_ENV", "CONDA_"))}
    made.update(
        UV_PYTHON=PYTHON,
        UV_PYTHON_PREFERENCE="only-managed",
        UV_PYTHON_INSTALL_DIR=str(target.parent / "python"),
        UV_CACHE_DIR=f"{target}.cache",
        UV_NO_PROGRESS="1",
    )
    if build:
        made["UV_TORCH_BACKEND"] = build
    length = len(ENV_INSTALL_PREFIX)
    made.update({k[length:]: v for k, v in environ.items() if k.startswith(ENV_INSTALL_PREFIX)})
    return made


def site_of(environment: Path) -> str:
    """Return the folder of an environment's packages."""
    return str(next(environment.glob("lib/python3*/site-packages"), environment))


def _padded(text: str) -> tuple[int, ...]:
    numbers = tuple(map(int, text.split(".")))
    return numbers + (0,) * (6 - len(numbers))
