"""Write the hashes that pods hold their packages to: of every wheel of the versions pinned in
trmcloud/pod/machine/environment.txt that runs on Linux with glibc, under CPython 3.11 to 3.14.

    python scripts/pod_hashes.py

uv is asked which files there are; none is fetched. torch has no hash: which of its builds is right
for a driver is the index's word.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import tomllib
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import canonicalize_name, parse_wheel_filename

LIST = Path(__file__).resolve().parents[1] / "trmcloud" / "pod" / "environment.txt"
PYTHONS = ((3, 11), (3, 12), (3, 13), (3, 14))
MACHINES = ("x86_64", "aarch64")
NEWEST_GLIBC = 39


def tags() -> Iterator[Tag]:
    platforms = [f"manylinux_2_{minor}_{m}" for m in MACHINES for minor in range(5, NEWEST_GLIBC)]
    platforms += [f"manylinux{year}_{m}" for m in MACHINES for year in ("1", "2010", "2014")]
    for python in PYTHONS:
        abi = f"cp{python[0]}{python[1]}"
        yield from cpython_tags(python, [abi], platforms)
        yield from compatible_tags(python, abi, platforms)


def main() -> None:
    lines = [line for line in LIST.read_text().splitlines() if not line.startswith(" ")]
    pins = [line.split(" ")[0] for line in lines if "==" in line and not line.startswith("torch==")]
    with tempfile.TemporaryDirectory() as folder:
        wanted, lock = Path(folder, "pins"), Path(folder, "pylock.toml")
        wanted.write_text("\n".join(pins))
        command = [str(Path(sys.executable).with_name("uv")), "pip", "compile", str(wanted)]
        command += ["--no-deps", "--universal", "--python-version", "3.11", "-q", "-o", str(lock)]
        subprocess.run(command, check=True)
        packages = tomllib.loads(lock.read_text())["packages"]
    known = frozenset(tags())
    hashes = {
        package["name"]: sorted(
            wheel["hashes"]["sha256"]
            for wheel in package["wheels"]
            if known & parse_wheel_filename(wheel["url"].rpartition("/")[2])[3]
        )
        for package in packages
    }
    written = chain.from_iterable(
        [line, *(f"  {sha}" for sha in hashes.get(canonicalize_name(line.split("==")[0]), ()))]
        for line in lines
    )
    LIST.write_text("\n".join(written) + "\n")


if __name__ == "__main__":
    main()
