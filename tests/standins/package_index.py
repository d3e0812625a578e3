"""An index of packages on loopback: the simple repository API (PEP 503), with tiny wheels.

Its sdists are traps: to build one, or only to ask for its metadata, writes the builder's variables
into a file. Their build backend is in the sdist, so that nothing else is needed to spring them.
"""

from __future__ import annotations

import base64
import contextlib
import html
import io
import tarfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from tests.standins.loopback import Handler, serving_at

_BACKEND = """
import os
with open({mark!r}, "a") as file:
    file.write(repr(dict(os.environ)))
def prepare_metadata_for_build_wheel(*_, **__): raise SystemExit(1)
get_requires_for_build_wheel = get_requires_for_build_sdist = lambda *_, **__: []
build_wheel = build_sdist = prepare_metadata_for_build_wheel
"""


def wheel(
    name: str, version: str, needs: Sequence[str] = (), python: str = "", tag: str = "py3-none-any"
) -> tuple[str, bytes]:
    """Return the name and the bytes of a wheel without files."""
    stem = f"{name.replace('-', '_')}-{version}"
    about = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}"]
    about += [f"Requires-Dist: {each}" for each in needs]
    about += [f"Requires-Python: {python}"] if python else []
    files = {
        "METADATA": "\n".join(about) + "\n",
        "WHEEL": f"Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    record = "".join(f"{stem}.dist-info/{each},,\n" for each in (*files, "RECORD"))
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for path, text in {**files, "RECORD": record}.items():
            archive.writestr(f"{stem}.dist-info/{path}", text)
    return f"{stem}-{tag}.whl", made.getvalue()


def trap(name: str, version: str, mark: Path) -> tuple[str, bytes]:
    """Return the name and the bytes of an sdist that writes ``mark`` once it is built."""
    files = {
        "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        "pyproject.toml": "[build-system]\nrequires = []\nbuild-backend = 'trap'\n"
        "backend-path = ['.']\n",
        "trap.py": _BACKEND.format(mark=str(mark)),
    }
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        for path, text in files.items():
            about = tarfile.TarInfo(f"{name}-{version}/{path}")
            about.size = len(text)
            archive.addfile(about, io.BytesIO(text.encode()))
    return f"{name}-{version}.tar.gz", made.getvalue()


class PackageIndex:
    """``asked`` is each path that was asked for, with its ``Authorization``."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.login = ""
        """``name:password`` that every request needs."""
        self._files: dict[str, dict[str, tuple[bytes, str]]] = {}
        self._port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/simple"

    def url_with(self, login: str) -> str:
        return self.url.replace("://", f"://{login}@")

    @property
    def names(self) -> set[str]:
        """The packages that were asked for."""
        paths = (urlsplit(path).path.split("/") for path, _ in self.asked)
        return {parts[2] for parts in paths if len(parts) > 3}

    def add(self, name: str, file: tuple[str, bytes], python: str = "") -> None:
        self._files.setdefault(name, {})[file[0]] = (file[1], python)

    def wheel(
        self, name: str, version: str, needs: Sequence[str] = (), python: str = "", tag: str = ""
    ) -> None:
        made = wheel(name, version, needs, python, **({"tag": tag} if tag else {}))
        self.add(name, made, python)

    def _answer(self, path: str) -> tuple[str, bytes] | None:
        parts = urlsplit(path).path.strip("/").split("/")  # a proxy is asked by the whole address
        files: Mapping[str, tuple[bytes, str]] = self._files.get(parts[1] if parts[1:] else "", {})
        if parts[0] == "files" and parts[-1] in files:
            return "application/octet-stream", files[parts[-1]][0]
        if parts[0] != "simple" or len(parts) != 2 or not files:
            return None
        rows = []
        for name, (_, python) in files.items():
            needs = f' data-requires-python="{html.escape(python)}"' if python else ""
            rows.append(f'<a href="/files/{parts[1]}/{name}"{needs}>{name}</a>\n')
        return "text/html", "".join(rows).encode()

    def handler(self) -> type[Handler]:
        index = self

        class Answers(Handler):
            def do_GET(self) -> None:
                login = self.headers.get("Authorization", "")
                index.asked.append((self.path, login))
                wanted = f"Basic {base64.b64encode(index.login.encode()).decode()}"
                if index.login and login != wanted:
                    self.answer(401, headers={"WWW-Authenticate": "Basic"})
                elif (found := index._answer(self.path)) is None:
                    self.answer(404)
                else:
                    self.answer(200, found[1], found[0])

            do_HEAD = do_GET

        return Answers

    @contextlib.contextmanager
    def serving(self) -> Iterator[PackageIndex]:
        with serving_at(self.handler()) as self._port:
            yield self
