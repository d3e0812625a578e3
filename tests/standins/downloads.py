"""What a pod downloads, from this machine's loopback: a Python of uv's kind, and wheels.

``Downloads`` is a plain server of files. Its folder ``simple/`` is an index of packages as PEP 503
has it, since a listing of files is a page of links; ``python.json`` names an interpreter, this
machine's own, in the form of the list that uv carries; the archive has the layout of
python-build-standalone's ``install_only``. A pod is told of both by the user's settings alone.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import http.server
import json
import os
import platform
import sys
import sysconfig
import tarfile
import threading
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.e2e.user import STANDIN
from tests.standins.loopback import serving_at
from trmcloud.pod.machine import packages

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
_LEFT_OUT = ("__pycache__", "test", "tests", "site-packages", "dist-packages", "idlelib", "tkinter")


class Downloads:
    def __init__(self, folder: Path) -> None:
        self.folder, self.is_real = folder, False
        (folder / "simple").mkdir(parents=True, exist_ok=True)
        self.asked: list[str] = []
        self.port = 0
        self._answers = threading.Event()
        self._answers.set()

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        asked, answers = self.asked, self._answers

        class Files(http.server.SimpleHTTPRequestHandler):
            def do_GET(self) -> None:
                answers.wait()
                super().do_GET()

            def log_message(self, format: str, *values: object) -> None:
                asked.append(self.path)

        with serving_at(functools.partial(Files, directory=str(self.folder))) as self.port:
            try:
                yield
            finally:
                answers.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """What is asked for meanwhile is answered only afterwards."""
        self._answers.clear()
        try:
            yield
        finally:
            self._answers.set()

    def settings(self) -> dict[str, str]:
        """By which a user says where their pods get a Python and packages."""
        return {
            "TRMCLOUD_INSTALL_UV_DEFAULT_INDEX": f"{self.url}/simple/",
            "TRMCLOUD_INSTALL_UV_PYTHON_DOWNLOADS_JSON_URL": f"{self.url}/python.json",
            "TRMCLOUD_INSTALL_UV_PYTHON": VERSION,
            # Small wheels, made here, under real names.
            **({} if self.is_real else {"TRMCLOUD_INSTALL_HASHES": "off"}),
        }

    def add_python(self) -> None:
        """This machine's interpreter, without what is installed for it."""
        archive = self.folder / "python.tar.gz"
        prefix, lib = Path(sys.base_prefix), Path(sysconfig.get_path("stdlib"))
        with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
            program = Path(os.path.realpath(prefix / "bin" / f"python{VERSION}"))
            for name in ("python", "python3", f"python{VERSION}"):
                tar.add(program, f"python/bin/{name}")
            tar.add(lib, f"python/lib/python{VERSION}", filter=_wanted)
            for shared in prefix.glob("lib/libpython*.so*"):
                tar.add(shared, f"python/lib/{shared.name}")
        machine = platform.machine()
        told = {
            "name": "cpython",
            "arch": {"family": machine, "variant": None},
            "os": "linux",
            "libc": "gnu",
            "major": sys.version_info.major,
            "minor": sys.version_info.minor,
            "patch": sys.version_info.micro,
            "prerelease": "",
            "url": f"{self.url}/python.tar.gz",
            "sha256": hashlib.sha256(archive.read_bytes()).hexdigest(),
            "variant": None,
            "build": "20261121",
        }
        key = f"cpython-{platform.python_version()}-linux-{machine}-gnu"
        (self.folder / "python.json").write_text(json.dumps({key: told}))

    def add_wheel(self, name: str, version: str, files: Mapping[str, bytes]) -> None:
        module = name.replace("-", "_").replace(".", "_")
        info = f"{module}-{version}.dist-info"
        page = self.folder / "simple" / name.lower().replace("_", "-").replace(".", "-")
        page.mkdir(exist_ok=True)
        about = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode()
        kind = b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        content = {**files, f"{info}/METADATA": about, f"{info}/WHEEL": kind}
        with zipfile.ZipFile(page / f"{module}-{version}-py3-none-any.whl", "w") as wheel:
            for path, data in content.items():
                member = zipfile.ZipInfo(path)
                member.external_attr = (0o100755 if "/scripts/" in path else 0o100644) << 16
                wheel.writestr(member, data)
            record = "".join(f"{path},,\n" for path in (*content, f"{info}/RECORD"))
            wheel.writestr(f"{info}/RECORD", record)

    def add_real_wheels(self, folder: Path) -> None:
        """Those that lie in ``folder``, under their own names."""
        self.is_real = True
        for wheel in folder.glob("*.whl"):
            name = wheel.name.partition("-")[0].lower().replace("_", "-").replace(".", "-")
            page = self.folder / "simple" / name
            page.mkdir(exist_ok=True)
            (page / wheel.name).symlink_to(wheel)

    def add_wheels(self) -> None:
        """Everything on the shipped list by its name and pin; torch is the stand-in trainer's."""
        for package in packages.read_list(packages.LIST.read_text()):
            files: dict[str, bytes] = {}
            if package.name == "torch":
                paths = [path for path in STANDIN.glob("torch/**/*.py") if path.is_file()]
                files = {str(path.relative_to(STANDIN)): path.read_bytes() for path in paths}
            self.add_wheel(package.name, package.pin, files)


def _wanted(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    parts = Path(member.name).parts
    is_left_out = any(part in _LEFT_OUT for part in parts) or member.name.endswith(".a")
    # Debian's leads out of it, to a file below /etc: uv unpacks no such archive.
    is_left_out = is_left_out or member.issym()
    return None if is_left_out else member


@contextlib.contextmanager
def downloads(folder: Path, real: Path | None = None) -> Iterator[Downloads]:
    """With a Python and every package that a trainer is to have: small ones made for it, or the
    ``real`` ones of a folder."""
    served = Downloads(folder)
    with served.serving():
        served.add_python()
        if real is None:
            served.add_wheels()
        else:
            served.add_real_wheels(real)
        yield served
