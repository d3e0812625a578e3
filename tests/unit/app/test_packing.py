"""What travels to a machine: all that it runs, nothing else, and the same from every Python."""

from __future__ import annotations

import ast
import dataclasses
import os
import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from tests.pythons import found
from trmcloud.app.staging.bundle import bundle_root
from trmcloud.app.staging.packing import (
    LATER,
    PACKAGE,
    own_sources,
    pack,
    stripped,
    trainers_share,
)
from trmcloud.core.errors import DataError

ENTRIES = ("trmcloud.pod.boot", "trmcloud.export.standalone")
AGENT, UPLOAD = "trmcloud.pod.agent.process", "trmcloud.pod.storage.upload"
TRAINER = bundle_root() / "model"
ROOT = PACKAGE.parent
PROGRAMS = {
    ENTRIES[0]: (AGENT, UPLOAD),
    ENTRIES[1]: (AGENT, UPLOAD, ENTRIES[1]),
}
"""What is started as a process of its own, and takes ``--help``."""


@pytest.fixture(scope="module", params=ENTRIES)
def entry(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def files(entry: str) -> dict[str, bytes]:
    return own_sources(entry, trainer=TRAINER)


def unpack(files: dict[str, bytes], folder: Path) -> None:
    with tarfile.open(fileobj=BytesIO(pack(files))) as tar:
        tar.extraction_filter = getattr(tarfile, "data_filter", None)  # from 3.11.4 on
        tar.extractall(folder)


def test_what_a_machine_needs_is_in_it_and_the_planner_is_not(
    entry: str, files: dict[str, bytes]
) -> None:
    names = set(files)
    for module in (entry, AGENT, UPLOAD, "trmcloud.pod.machine.prepare"):
        assert f"{module.replace('.', '/')}.py" in names
    assert "trmcloud/pod/machine/environment.txt" in names
    assert "trmcloud/core/spec/work.py" in names, "the trainer imports it"
    if entry == ENTRIES[0]:
        assert not {"trmcloud/core/spec/plan.py", "trmcloud/core/control/controller.py"} & names
    assert not any(name.startswith(("trmcloud/app", "trmcloud/adapters")) for name in names)


def test_the_unpacked_sources_alone_run_every_program(
    entry: str, files: dict[str, bytes], tmp_path: Path
) -> None:
    """By every Python that is here, each module, each program, in a folder that holds no more."""
    unpack(files, tmp_path)
    modules = [n.removesuffix(".py").replace("/", ".") for n in files if n.endswith(".py")]
    # Callbacks are for a script of the user's, and a server's connections for a server: both are
    # imported only where their packages are.
    modules = [
        name.removesuffix(".__init__")
        for name in modules
        if ".trmcloud_job_" not in name and name != "trmcloud.io.web_connections"
    ]
    everything = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)\n"
    pythons = [str(path) for path in found().values()]
    for python in pythons:
        words = [python, "-W", "error", "-S", "-c", everything, *modules]
        done = subprocess.run(words, cwd=tmp_path, env={}, capture_output=True, text=True)
        assert done.returncode == 0, f"{python}: {done.stderr[-2000:]}"
    for python in {pythons[0], pythons[-1]}:
        for program in PROGRAMS[entry]:
            words = [python, "-m", program, "--help"]
            done = subprocess.run(words, cwd=tmp_path, env={}, capture_output=True, text=True)
            assert done.stdout.startswith("usage:"), done.stderr[-2000:]


def test_the_trainers_imports_of_ours_are_all_there(
    files: dict[str, bytes], tmp_path: Path
) -> None:
    unpack(files, tmp_path)
    statements = {
        ast.unparse(node)
        for path in TRAINER.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("trmcloud")
    }
    assert statements
    code = "\n".join(sorted(statements))
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=tmp_path, env={}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_same_bytes_whichever_python_packs() -> None:
    code = (
        "import hashlib, sys; from pathlib import Path\n"
        "from trmcloud.app.staging.packing import *\n"
        "if sys.version_info < (3, 11): sys.exit()\n"
        f"for entry in {ENTRIES}:\n"
        f"    files = own_sources(entry, trainer=Path({str(TRAINER)!r}))\n"
        "    print(hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest())\n"
    )
    told = {
        subprocess.run(
            [python, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
        for python in found().values()
    } - {""}
    assert len(told) == 1, "one text from all of them"
    assert len(told.pop().split()) == len(ENTRIES)


def test_the_order_of_files_makes_no_difference(files: dict[str, bytes]) -> None:
    assert pack(files) == pack(dict(reversed(files.items())))


VALUES = "trmcloud/core/values.py"


def test_a_machine_gets_the_standard_dataclass(files: dict[str, bytes]) -> None:
    known: dict[str, object] = {}
    exec(files[VALUES], known)
    assert known["dataclass"] is dataclasses.dataclass
    assert known["replace"] is dataclasses.replace


def test_stripping_changes_neither_meaning_nor_line_numbers(files: dict[str, bytes]) -> None:
    for name, content in files.items():
        if not name.endswith(".py") or name == VALUES:
            continue
        before = (ROOT / name).read_text()
        after = content.decode()
        assert _meaning(before) == _meaning(after), name
        assert before.count("\n") == after.count("\n"), name
        said = [node for node in ast.walk(ast.parse(after)) if isinstance(node, ast.Expr)]
        assert not any(_says_only(node) for node in said), name


def _meaning(text: str) -> list[str]:
    """The tree without statements that only say something, each with its line."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [item for item in body if not _says_only(item)]  # type: ignore[attr-defined]
    lines = [str(getattr(node, "lineno", "")) for node in ast.walk(tree)]
    return [*lines, ast.dump(tree)]


def _says_only(node: object) -> bool:
    if isinstance(node, ast.Pass):
        return True
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def test_what_looks_like_a_comment_and_is_none() -> None:
    text = (
        '"""Doc."""\n'
        "from __future__ import annotations\n"
        "a = 'x # no comment'  # one\n"
        "b = f\"{a} # {len('#')}\"\n"
        "c = '''\n# kept\n  trailing   \n'''\n"
        "def f():\n"
        '    """Doc\n\n    of f."""  # and more\n'
        "class E(Exception):\n"
        "    '''Doc.'''\n"
        "    # last\n"
        "x: int = 1\n"
        '"""Of x."""\n'
        "g = (\n    'one'  # of\n    'two'\n)\n"
    )
    plain = stripped(text)
    assert plain == (
        "\n"
        "from __future__ import annotations\n"
        "a = 'x # no comment'\n"
        "b = f\"{a} # {len('#')}\"\n"
        "c = '''\n# kept\n  trailing   \n'''\n"
        "def f():\n"
        "    pass\n\n\n"
        "class E(Exception):\n"
        "    pass\n"
        "\n"
        "x: int = 1\n"
        "\n"
        "g = (\n    'one'\n    'two'\n)\n"
    )
    assert stripped(plain) == plain
    compile(plain, "plain", "exec")


def test_what_uploads_follows_with_the_trainer(tmp_path: Path) -> None:
    """A pod has the agent alone at first; where the trainer is, the uploader starts, too."""
    first, code = tmp_path / "first", tmp_path / "code"
    early, share = own_sources(ENTRIES[0], later=LATER), trainers_share(TRAINER)
    assert LATER[0] == UPLOAD
    for folder, sources in ((first, early), (code, share)):
        for name, content in sources.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)

    def starts(program: str, *folders: Path) -> bool:
        environment = {"PYTHONPATH": os.pathsep.join(map(str, folders)), "PATH": os.environ["PATH"]}
        done = subprocess.run(
            [sys.executable, "-P", "-m", program, "--help"],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
        )
        return done.returncode == 0

    assert starts(AGENT, first)
    for program in LATER:
        assert not starts(program, first)
        assert starts(program, code, first)


def test_a_module_that_is_started_late_comes_along(tmp_path: Path) -> None:
    package, trainer = tmp_path / "trmcloud", tmp_path / "model"
    for name, text in {
        "__init__.py": "",
        "pod/__init__.py": "",
        "pod/boot.py": (
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import trmcloud.pod.typed\n"
            "def late():\n    from trmcloud.pod import lazy\n"
            "WORDS = ['python', '-m', 'trmcloud.pod.started']\nLIST = 'list.txt'\n"
        ),
        "pod/lazy.py": "",
        "pod/started.py": "import trmcloud.pod.deep\n",
        "pod/deep.py": "",
        "pod/typed.py": "",
        "pod/unused.py": "",
        "pod/list.txt": "a list\n",
        "pod/other.txt": "not named\n",
    }.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    trainer.mkdir()
    (trainer / "train.py").write_text("import trmcloud\n")
    assert set(own_sources("trmcloud.pod.boot", trainer=trainer, package=package)) == {
        "trmcloud/__init__.py", "trmcloud/pod/__init__.py", "trmcloud/pod/boot.py",
        "trmcloud/pod/lazy.py", "trmcloud/pod/started.py", "trmcloud/pod/deep.py",
        "trmcloud/pod/list.txt",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "what"),
    [("from trmcloud.core.none import x\n", "no module trmcloud.core.none"), ("def", "cannot be")],
)
def test_a_trainer_that_could_not_run_is_told_before_anything_is_rented(
    tmp_path: Path, text: str, what: str
) -> None:
    (tmp_path / "train.py").write_text(text)
    with pytest.raises(DataError, match=what) as caught:
        own_sources("trmcloud.pod.boot", trainer=tmp_path)
    assert "train.py" in str(caught.value)
