"""The user of a visit: a home with keys, secrets beside the tree, an index, traps for hostile code.

Every secret contains ``MARK``, so that a leak is found whatever part of it is shown. Three loopback
addresses keep three parties apart: the user's index, an index that the tree names, and hosts that a
tree names otherwise (direct and VCS addresses, submodules).
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import json
import os
import shutil
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

MARK = "KNRYQX"
RUNPOD_KEY = f"rpa_{MARK}runpod0000000000000000000000000000"
USER_INDEX, TREE_INDEX, STRANGER = "127.0.0.1", "127.0.0.2", "127.0.0.3"
NETRC_PASSWORD = f"{MARK}netrc1"
KEYS: Mapping[str, str] = {
    "RUNPOD_API_KEY": RUNPOD_KEY,
    "AWS_ACCESS_KEY_ID": f"AKIA{MARK}AAAAAAAAAA",
    "AWS_SECRET_ACCESS_KEY": f"{MARK}aws/secret/0000000000000000000000",
    "HF_TOKEN": f"hf_{MARK}huggingfacetoken00000000000000",
    "WANDB_API_KEY": f"{MARK}wandb000000000000000000000000000000000",
    "OPENAI_API_KEY": f"sk-{MARK}openai00000000000000000000000000",
    "GITHUB_TOKEN": f"ghp_{MARK}github000000000000000000000000",
    "MY_DATABASE_URL": f"postgresql://owner:{MARK}database@db.example/ledger",
}
"""Variables of the user's shell."""
PATH = "/usr/local/bin:/usr/bin:/bin"
KEY_FILES: Mapping[str, str] = {
    ".ssh/id_rsa": f"-----BEGIN OPENSSH PRIVATE KEY-----\n{MARK}ssh\n",
    ".aws/credentials": f"[default]\naws_access_key_id = AKIA{MARK}BBBBBBBBBB\n"
    f"aws_secret_access_key = {MARK}awsfile\n",
    ".netrc": f"machine {USER_INDEX} login owner password {NETRC_PASSWORD}\n",
    ".git-credentials": f"https://owner:{MARK}git@example.com\n",
    ".runpod/config.toml": f'apikey = "{MARK}runpodfile"\n',
    ".cache/huggingface/token": f"hf_{MARK}file000000000000000000000000\n",
    ".pypirc": f"[pypi]\npassword = {MARK}pypi\n",
    ".docker/config.json": f'{{"auths": {{"x": {{"auth": "{MARK}docker"}}}}}}\n',
}
"""Files of the user's home, each with a key."""
OUTSIDE_FILES: Mapping[str, str] = {
    "secret.txt": f"postgresql://owner:{MARK}outside@db/ledger\nsecond={MARK}second\n",
    "token.txt": f"{MARK}0outsidetoken0name\n",
    "requirements.txt": f"alpha\n{MARK}-outside-package==1.0\nnot a requirement {MARK}line\n",
    "secret.yaml": f"name: {MARK}yaml\ndependencies:\n  - {MARK}conda\n",
    "secret.toml": f'[project]\nname = "{MARK}toml"\ndependencies = ["{MARK}dep"]\n',
    "folder/deep.txt": f"{MARK}deep\n",
}
"""Files beside the tree, which no door has a reason to open."""
GOOD = ("alpha", "beta", "gamma")
"""Packages of both indexes, as wheels in versions 1.0 and 2.0."""
PRIVATE = "private-package"
"""A name that no index has; where a tree's file names an index in place of the user's, the user's
is not to be asked for it."""
SOURCE_ONLY = "delta"
"""A package of both indexes that exists as sources alone."""


@dataclass(frozen=True)
class World:
    """Where a visit takes place. ``folder`` holds everything of it; nothing outlives it."""

    folder: Path
    user_index: str
    tree_index: str
    stranger: str
    """Base addresses of HTTP servers, without a slash at the end."""
    python: str
    """The absolute path of a Python 3, which the traps are written for."""

    @property
    def tree(self) -> Path:
        return self.folder / "tree"

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def product_home(self) -> Path:
        return self.home / "trmcloud"

    @property
    def outside(self) -> Path:
        return self.folder / "outside"

    @property
    def tmp(self) -> Path:
        return self.folder / "tmp"

    @property
    def traps(self) -> Path:
        """A folder that does not exist: a path below it is looked at by hostile code alone."""
        return self.folder / "ran"

    def trap(self, name: str) -> str:
        return str(self.traps / name)

    def shell_trap(self, name: str) -> str:
        """A line of sh that runs into the trap."""
        return f": < {self.trap(name)}"

    def python_trap(self, name: str) -> str:
        """A line of Python that runs into the trap, and goes on."""
        return (
            f"try: open({self.trap(name)!r})\n"
            "except OSError: pass\n"
        )  # fmt: skip

    def make(self, template: Path | None = None) -> None:
        """Make the folders of a new visit; ``template`` is the home of a user with runs."""
        if self.folder.exists():
            remove(self.folder)
        self.folder.mkdir(parents=True)
        self.tree.mkdir()
        self.tmp.mkdir()
        if template is not None:
            shutil.copytree(template, self.home, symlinks=True)
        else:
            self.home.mkdir()
        for folder, files in ((self.home, KEY_FILES), (self.outside, OUTSIDE_FILES)):
            for name, text in files.items():
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
        pip = self.home / ".config" / "pip" / "pip.conf"
        pip.parent.mkdir(parents=True, exist_ok=True)
        pip.write_text(f"[global]\nindex-url = {self.user_index}/simple/\n")
        (self.home / ".gitconfig").write_text("[user]\n\tname = Owner\n\temail = o@example.com\n")

    def environment(self) -> dict[str, str]:
        """Return the variables of the user's shell."""
        return {
            "PATH": PATH,
            "HOME": str(self.home),
            "TRMCLOUD_HOME": str(self.product_home),
            "TMPDIR": str(self.tmp),
            "LANG": "C.UTF-8",
            "PYTHONDONTWRITEBYTECODE": "1",
            **KEYS,
        }


def remove(folder: Path) -> None:
    """Remove a folder with whatever names and permissions are in it."""
    shutil.rmtree(folder, onerror=_try_again)


def _try_again(function: Callable[[str], object], path: str, _: object) -> None:
    with contextlib.suppress(OSError):
        os.chmod(os.path.dirname(path), 0o700)
        function(path)


# -- packages ----------------------------------------------------------------------------------


def wheel(name: str, version: str, needs: tuple[str, ...] = ()) -> bytes:
    """A wheel of one empty module."""
    rows = "".join(f"Requires-Dist: {each}\n" for each in needs)
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{rows}"
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": "",
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\n"
        "Tag: py3-none-any\n",
    }
    record = ""
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=")
        record += f"{path},sha256={digest.decode()},{len(text)}\n"
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n"
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return made.getvalue()


def sdist(name: str, version: str, trap: str) -> bytes:
    """Sources whose build, by setuptools or by their own backend, runs the line ``trap``."""
    top = f"{name}-{version}"
    backend = (
        f"{trap}\n"
        "def prepare_metadata_for_build_wheel(folder, settings=None):\n"
        "    import os\n"
        f"    info = os.path.join(folder, '{name}-{version}.dist-info')\n"
        "    os.mkdir(info)\n"
        "    with open(os.path.join(info, 'METADATA'), 'w') as file:\n"
        f"        file.write('Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n')\n"
        "    with open(os.path.join(info, 'WHEEL'), 'w') as file:\n"
        "        file.write('Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')\n"
        f"    return '{name}-{version}.dist-info'\n"
        "def build_wheel(*given): raise SystemExit(1)\n"
        "def build_sdist(*given): raise SystemExit(1)\n"
        "def get_requires_for_build_wheel(settings=None): return []\n"
    )
    project = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    return archive({
        f"{top}/PKG-INFO": f"Metadata-Version: 1.0\nName: {name}\nVersion: {version}\n",
        f"{top}/pyproject.toml": project,
        f"{top}/backend.py": backend,
        f"{top}/setup.py": f"{trap}\nfrom setuptools import setup\nsetup(name={name!r})\n",
    })  # fmt: skip


def archive(files: Mapping[str, str]) -> bytes:
    """A tar.gz of text files."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as writer:
        for path, text in files.items():
            member = tarfile.TarInfo(path)
            member.size = len(text.encode())
            writer.addfile(member, io.BytesIO(text.encode()))
    return made.getvalue()


# -- servers -----------------------------------------------------------------------------------


class Host:
    """An HTTP server at one address, which serves packages and keeps what it was asked."""

    def __init__(self, address: str, files: Mapping[str, bytes]) -> None:
        self.asked: list[str] = []
        """The request line and the headers of each request."""
        self._pages = {f"/files/{name}": data for name, data in files.items()}
        by_name: dict[str, list[str]] = {}
        for name in files:
            by_name.setdefault(name.partition("-")[0], []).append(name)
        for name, listed in by_name.items():
            links = "".join(f'<a href="/files/{each}">{each}</a>\n' for each in listed)
            self._pages[f"/simple/{name}/"] = f"<!DOCTYPE html><html><body>{links}".encode()
        host = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                host.answer(self)

            do_HEAD = do_POST = do_PUT = do_GET

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer((address, 0), Handler)
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        self.url = f"http://{address}:{self.port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        headers = []
        for name, value in request.headers.items():
            word, _, given = value.partition(" ")
            if word == "Basic":
                with contextlib.suppress(ValueError):
                    value = base64.b64decode(given).decode("utf-8", "replace")
            headers.append(f"{name}: {value}")
        self.asked.append("\n".join((request.requestline, *headers)))
        path = request.path.partition("?")[0].partition("#")[0]
        page = self._pages.get(path, self._pages.get(f"{path}/"))
        request.send_response(404 if page is None else 200)
        data = page or b""
        html = path.startswith("/simple")
        request.send_header("Content-Type", "text/html" if html else "application/octet-stream")
        request.send_header("Content-Length", str(len(data)))
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(data)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@dataclass(frozen=True)
class Hosts:
    """The user's index, the one that a tree names, and a stranger's host."""

    user: Host
    tree: Host
    stranger: Host

    def clear(self) -> None:
        for each in (self.user, self.tree, self.stranger):
            each.asked.clear()


@contextlib.contextmanager
def hosts(traps: Path) -> Iterator[Hosts]:
    """Serve until the block ends; ``traps`` is where the sources that are served run into one."""
    files = {
        f"{name}-{v}-py3-none-any.whl": wheel(name, v) for name in GOOD for v in ("1.0", "2.0")
    }
    for name in (SOURCE_ONLY, "evil"):
        trap = f"try: open({str(traps / ('index-' + name))!r})\nexcept OSError: pass"
        files[f"{name}-1.0.tar.gz"] = sdist(name, "1.0", trap)
    made = Hosts(Host(USER_INDEX, files), Host(TREE_INDEX, files), Host(STRANGER, files))
    try:
        yield made
    finally:
        for each in (made.user, made.tree, made.stranger):
            each.close()


# -- the sky command ---------------------------------------------------------------------------

SKY = """#!{python} -IS
# A stand-in of SkyPilot's sky: as the real one it obeys .sky.yaml in its folder, unless a variable
# names another project configuration, and an endpoint of its environment comes first.
import json, os, re, socket, sys
text = ""
try:
    with open(os.environ.get("SKYPILOT_PROJECT_CONFIG") or ".sky.yaml") as file:
        text = file.read()
except OSError:
    pass
endpoint = os.environ.get("SKYPILOT_API_SERVER_ENDPOINT") or ""
found = re.search("endpoint: *http://([0-9.]+):([0-9]+)", text)
if found and not endpoint:
    try:
        socket.create_connection((found[1], int(found[2])), 2).close()
    except OSError:
        pass
words = sys.argv[1:]
if words[:1] == ["--version"]:
    print("skypilot, version 0.14.1")
elif words[:1] == ["check"]:
    print(json.dumps({{"default": {{"RunPod": ["compute"]}}}}))
else:
    print("[]")
"""


def write_sky(path: Path, python: str) -> None:
    path.write_text(SKY.format(python=python))
    path.chmod(0o755)


def probe_record(words: tuple[str, ...], at: float) -> str:
    """The home's record of a probe of ``words``, by which ``plan -- COMMAND`` has a price."""
    measured = {
        "steps": 50, "fast_s": 0.09, "step_s": 0.1, "slow_s": 0.12, "memory_bytes": 10**9,
        "cores": 1.0,
    }  # fmt: skip
    probed = {
        "run_id": "r-00aa11", "sku": "A100-80GB-SXM", "gpus": 1, "here": False,
        "measured": measured, "busy": 0.9, "used_gb": 30.0,
    }  # fmt: skip
    return json.dumps([{"words": list(words), "at": at, "probed": probed}])
