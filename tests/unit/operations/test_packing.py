"""What travels to a machine: all that it runs, nothing else; what of a working tree is sent."""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import json
import os
import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints import checkpoint
from tests.pythons import found
from trmcloud.cli.views.launch import tree_lines
from trmcloud.core.contract import manifest as mf
from trmcloud.core.contract.pod_contract import POD_ROOT
from trmcloud.core.errors import DataError
from trmcloud.operations.home import bundle_root
from trmcloud.operations.money.html_page import head_of
from trmcloud.operations.sending import working_tree
from trmcloud.operations.sending.packing import (
    LATER,
    PACKAGE,
    own_sources,
    pack,
    strip_source,
    trainers_share,
)
from trmcloud.operations.sending.staging import (
    code_item,
    content_key,
    data_files,
    hashes_of,
    remote_folder,
)
from trmcloud.operations.sending.working_tree import look_at, why_left_out
from trmcloud.operations.sending.working_tree import pack as pack_tree
from trmcloud.pod.job.workspace import lay_data, unpack

# -- packing ------------------------------------------------------------------------------------
# What travels to a machine: all that it runs, nothing else, and the same from every Python.


ENTRIES = ("trmcloud.pod.boot", "trmcloud.export.standalone")
AGENT, UPLOAD = "trmcloud.pod.agent.process", "trmcloud.pod.storage.upload"
TRAINER = bundle_root() / "model"
ROOT = PACKAGE.parent
PROGRAMS = {ENTRIES[0]: (AGENT, UPLOAD), ENTRIES[1]: (AGENT, UPLOAD, ENTRIES[1])}
"""What is started as a process of its own, and takes ``--help``."""


@pytest.fixture(scope="module", params=ENTRIES)
def entry(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def files(entry: str) -> dict[str, bytes]:
    return own_sources(entry, trainer=TRAINER)


def unpack_packing(files: dict[str, bytes], folder: Path) -> None:
    with tarfile.open(fileobj=BytesIO(pack(files))) as tar:
        tar.extraction_filter = getattr(tarfile, "data_filter", None)  # from 3.11.4 on
        tar.extractall(folder)


def test_what_a_machine_needs_is_in_it_the_planner_not(entry: str, files: dict[str, bytes]) -> None:
    names = set(files)
    for module in (entry, AGENT, UPLOAD, "trmcloud.pod.machine.prepare"):
        assert f"{module.replace('.', '/')}.py" in names
    assert "trmcloud/pod/machine/environment.txt" in names
    assert "trmcloud/core/spec/work.py" in names, "the trainer imports it"
    if entry == ENTRIES[0]:
        assert not {"trmcloud/core/spec/plan.py", "trmcloud/core/control/controller.py"} & names
    assert not any(name.startswith(("trmcloud/operations", "trmcloud/adapters")) for name in names)


def test_the_unpacked_sources_alone_run_every_program(
    entry: str, files: dict[str, bytes], tmp_path: Path
) -> None:
    """By the oldest and the newest Python that are here, each module, each program, in a folder
    that holds no more. ``make pythons`` does so with each."""
    unpack_packing(files, tmp_path)
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
    for python in {pythons[0], pythons[-1]}:
        words = [python, "-W", "error", "-S", "-c", everything, *modules]
        done = subprocess.run(words, cwd=tmp_path, env={}, capture_output=True, text=True)
        assert done.returncode == 0, f"{python}: {done.stderr[-2000:]}"
        for program in PROGRAMS[entry]:
            words = [python, "-m", program, "--help"]
            done = subprocess.run(words, cwd=tmp_path, env={}, capture_output=True, text=True)
            assert done.stdout.startswith("usage:"), done.stderr[-2000:]


def test_all_imports_of_the_trainer_are_there(files: dict[str, bytes], tmp_path: Path) -> None:
    unpack_packing(files, tmp_path)
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


def test_the_same_bytes_whichever_python_packs(entry: str, files: dict[str, bytes]) -> None:
    """By the oldest and the newest that trmcloud runs on here, beside this one."""
    code = (
        "import hashlib; from pathlib import Path\n"
        "from trmcloud.operations.sending.packing import *\n"
        f"files = own_sources({entry!r}, trainer=Path({str(TRAINER)!r}))\n"
        "print(hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest())\n"
    )
    mine = hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()
    known = {v: path for v, path in found().items() if v >= (3, 11)}
    for python in {known[min(known)], known[max(known)]} - {known[sys.version_info[:2]]}:
        told = subprocess.run(
            [python, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
        )
        assert told.stdout.strip() == mine, python


def test_the_order_of_files_makes_no_difference(files: dict[str, bytes]) -> None:
    assert pack(files) == pack(dict(reversed(files.items())))


VALUES = "trmcloud/core/values.py"


def test_a_machine_gets_the_standard_dataclass(files: dict[str, bytes]) -> None:
    known: dict[str, Any] = {}
    exec(files[VALUES] + b"class Kind(Value):\n n: int = 1\n", known)
    assert known["Kind"](2) == dataclasses.replace(known["Kind"](), n=2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        known["Kind"]().n = 3
    assert known["dataclass"] is dataclasses.dataclass
    assert known["replace"] is dataclasses.replace


_OF_FAMILIES = """
import json, pathlib, sys
from trmcloud.core.spec.settings import FAMILIES, PhaseRecipe
from trmcloud.io.families import FamilyFolders
assert not hasattr(sys.modules["trmcloud.core.values"], "_LazyInit"), "the machine's own"
FAMILIES.provide(FamilyFolders(lambda: pathlib.Path(sys.argv[1], "families")))
print(json.dumps([issubclass(each, PhaseRecipe) for each in FAMILIES.values()]))
"""


def test_settings_of_families_are_classes_on_a_machine_too(
    files: dict[str, bytes], tmp_path: Path
) -> None:
    """Others write families: their classes bear the decorator, as ours do."""
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (tmp_path / "model").symlink_to(TRAINER)
    done = subprocess.run(
        [sys.executable, "-c", _OF_FAMILIES, str(TRAINER)],
        cwd=tmp_path, env={"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found_settings = json.loads(done.stdout)
    assert len(found_settings) >= 6
    assert all(found_settings)


def test_stripping_changes_neither_meaning_nor_line_numbers(files: dict[str, bytes]) -> None:
    for name, content in files.items():
        if not name.endswith(".py") or name == VALUES:
            continue
        text = (ROOT / name).read_text()
        assert text.count("\n") == content.count(b"\n"), name
        before, after = ast.parse(text), ast.parse(content)
        assert _fields(before) == _fields(after), "records are read by these"
        said = [node for node in ast.walk(after) if isinstance(node, ast.Expr)]
        assert not any(_says_only(node) for node in said), name
        assert _meaning(before) == _meaning(after), name


def _meaning(tree: ast.AST) -> list[str]:
    """Return the lines and the dump of a tree without annotations and statements without effect."""
    tree = _Unannotated().visit(tree)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [item for item in body if not _says_only(item)]  # type: ignore[attr-defined]
    lines = [str(getattr(node, "lineno", "")) for node in ast.walk(tree)]
    return [*lines, ast.dump(tree)]


class _Unannotated(ast.NodeTransformer):
    """Takes annotations away; a variable's that has no value stays."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.returns = None
        self.generic_visit(node)
        return node

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AsyncFunctionDef:
        node.returns = None
        self.generic_visit(node)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt:
        self.generic_visit(node)
        if node.value is None:
            return node
        return ast.copy_location(ast.Assign([node.target], node.value), node)


def _fields(tree: ast.AST) -> list[str]:
    """The annotated names of the classes."""
    kinds = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    return [
        f"{kind.name}.{ast.dump(each.target)}: {ast.dump(each.annotation)}"
        for kind in kinds
        for each in kind.body
        if isinstance(each, ast.AnnAssign)
    ]


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
        '    """Doc\n\n    of f: é ÷ λ."""  # and more\n'
        "class E(Exception):\n"
        "    '''Doc.'''\n"
        "    # last\n"
        "x: int = 1\n"
        '"""Of x."""\n'
        "class R:\n    n: int = 2\n    def g(self, *a: int, é: str = 'ö', **k: dict[\n"
        "        str, int]) -> (\n            list[int]):\n"
        "        self.x: int = 3; y: str\n        return a\n"
        "g = (\n    'one'  # of\n    'two'\n)\n"
    )
    plain = strip_source(text)
    assert plain == (
        "\n"
        "from __future__ import annotations\n"
        "a = 'x # no comment'\n"
        "b = f\"{a} # {len('#')}\"\n"
        "c = '''\n# kept\n  trailing   \n'''\n"
        "def f():\n"
        " pass\n\n\n"
        "class E(Exception):\n"
        " pass\n"
        "\n"
        "x = 1\n"
        "\n"
        "class R:\n n: int = 2\n def g(self, *a, é = 'ö', **k\n):\n\n"
        "  self.x = 3; y: str\n  return a\n"
        "g = (\n'one'\n'two'\n)\n"
    )
    assert strip_source(plain) == plain
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
    [
        ("from trmcloud.core.none import x\n", "the imported module trmcloud.core.none"),
        ("def", "cannot be"),
    ],
)
def test_a_trainer_that_could_not_run_is_told_before_anything_is_rented(
    tmp_path: Path, text: str, what: str
) -> None:
    (tmp_path / "train.py").write_text(text)
    with pytest.raises(DataError, match=what) as caught:
        own_sources("trmcloud.pod.boot", trainer=tmp_path)
    assert "train.py" in str(caught.value)


# -- What is sent to a pod: an allow-list, named by its content ---------------------------------


def test_a_folder_is_named_by_what_is_in_it(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name / "sub").mkdir(parents=True)
        (tmp_path / name / "sub" / "train.bin").write_bytes(b"tokens")
        (tmp_path / name / ".part").write_bytes(name.encode())
    assert hashes_of(tmp_path / "one") == {"sub/train.bin": hashlib.sha256(b"tokens").hexdigest()}
    first = remote_folder("weights", tmp_path / "one")
    assert first == remote_folder("weights", tmp_path / "two")
    assert first.startswith(f"{POD_ROOT}/weights/")
    (tmp_path / "one" / "sub" / "train.bin").write_bytes(b"others")
    assert remote_folder("weights", tmp_path / "one") != first


def test_hidden_files_of_data_are_sent_and_keys_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRMCLOUD_HOME", str(tmp_path / "data/home"))
    odd = os.fsdecode(b"caf\xe9 #1.jpg")
    sent = {".zarray", "a/.zgroup", "ckpt/.metadata", "ckpt/__0_0.distcp", odd, "secrets.json"}
    kept = {".git/HEAD", "a/.env", ".ssh/config", ".cache/token", "home/ledger.db"}
    for name in sent | kept:
        put(tmp_path / "data", name)
    found = data_files(tmp_path / "data")
    assert set(found.names) == sent
    assert found.left_out == [".cache/token", ".git", ".ssh", "a/.env", "home"]
    first = remote_folder("data", tmp_path / "data")
    put(tmp_path / "data", ".zarray", "other")
    assert remote_folder("data", tmp_path / "data") != first
    put(tmp_path / "data", ".git/HEAD", "other")
    assert set(hashes_of(tmp_path / "data", found.names)) == sent


@pytest.mark.parametrize("target", ["../elsewhere", "nothing"])
def test_a_link_in_data_whose_files_would_be_missing_is_refused(
    tmp_path: Path, target: str
) -> None:
    put(tmp_path / "elsewhere", "x.bin")
    put(tmp_path / "data", "y.bin")
    (tmp_path / "data/to_file").symlink_to("y.bin")
    assert data_files(tmp_path / "data").names == ["to_file", "y.bin"]
    (tmp_path / "data/train").symlink_to(target)
    with pytest.raises(DataError, match="train is a link to a folder, or to nothing"):
        data_files(tmp_path / "data")


def test_data_in_a_folder_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    put(tmp_path / "data", "y.bin")
    (tmp_path / "data/loop").symlink_to("loop")
    with pytest.raises(DataError):
        data_files(tmp_path / "data")
    with pytest.raises(DataError, match="cannot be read") as refused:
        data_files(tmp_path / "missing")
    assert refused.value.next_step.startswith("make it readable")


def test_names_count_as_content() -> None:
    assert content_key({"a": "11", "b": "22"}) != content_key({"a": "22", "b": "11"})
    assert content_key({"b": "22", "a": "11"}) == content_key({"a": "11", "b": "22"})


def test_nothing_but_the_trainers_sources_travels(tmp_path: Path) -> None:
    package = tmp_path / "model"
    (package / "recipes").mkdir(parents=True)
    (package / "__pycache__").mkdir()
    for name in ("train.py", "recipes/trm.toml", ".env", "weights.bin", "id_rsa"):
        (package / name).write_text("x")
    (package / "__pycache__" / "train.py").write_text("x")
    (tmp_path / "secret.py").write_text("x")
    (package / "train.py").write_text("from trmcloud.core.contract.records import load\n")
    item = code_item(package, tmp_path / "home")
    assert {name for name in item.sha256 if name.startswith("model/")} == {
        "model/train.py", "model/recipes/trm.toml",
    }  # fmt: skip
    shared = {name for name in item.sha256 if not name.startswith("model/")}
    uploads = set(own_sources(*LATER))
    assert shared == uploads | {"trmcloud/core/contract/records.py"}
    assert {name.split("/")[1] for name in uploads} == {"__init__.py", "core", "io", "pod"}
    assert not any("agent" in name for name in uploads)
    for name, sha256 in item.sha256.items():
        assert hashlib.sha256((item.local / name).read_bytes()).hexdigest() == sha256
    assert item.remote == f"{POD_ROOT}/code/{item.local.name}"
    assert code_item(package, tmp_path / "home") == item


@pytest.mark.parametrize("made", [False, True], ids=["missing", "empty"])
def test_nothing_to_send_is_said(tmp_path: Path, made: bool) -> None:
    folder = tmp_path / "data"
    if made:
        folder.mkdir()
    with pytest.raises(DataError):
        hashes_of(folder)


# -- What of a working tree is sent, and what never is ------------------------------------------


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    put(made, "train.py", "print(1)")
    return made


def put(root: Path, name: str, text: str = "x") -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def git(root: Path, *words: str) -> None:
    subprocess.run(["git", "-C", str(root), *words], check=True, capture_output=True)


def test_gits_list_and_what_it_does_not_ignore(root: Path) -> None:
    git(root, "init", "-q")
    put(root, ".gitignore", "ignored/\n")
    for name in ("tracked.py", "new file é.py", "ignored/big.bin", "gone.py"):
        put(root, name)
    git(root, "add", "tracked.py", "gone.py")
    (root / "gone.py").unlink()
    tree = look_at(root)
    assert tree.by_git
    assert tree.names == (".gitignore", "new file é.py", "tracked.py", "train.py")


def test_without_git_all_that_is_not_hidden(root: Path) -> None:
    for name in (".secret/x", "a/b.py", "__pycache__/c.pyc", "venv/pyvenv.cfg", "venv/lib/x.py"):
        put(root, name)
    tree = look_at(root)
    assert not tree.by_git
    assert tree.names == ("a/b.py", "train.py")


@pytest.mark.parametrize("by_git", [True, False], ids=["git", "no-git"])
def test_a_fetched_checkpoint_is_not_sent_with_the_code(root: Path, by_git: bool) -> None:
    for name in ("manifest.json", "tree.json", "file-0001.bin", "own/step-3.pt"):
        put(root, f"best/{name}")
    put(root, "mine/tree.json")
    if by_git:
        git(root, "init", "-q")
    tree = look_at(root)
    assert set(tree.names) == {"mine/tree.json", "train.py"}
    assert "  · not sent, fetched checkpoints: best/" in tree_lines(tree)
    assert why_left_out(tree, "best/own/step-3.pt") == "it was downloaded by fetch-best"
    (root / ".trmcloudignore").write_text("!best/own/step-3.pt\n")
    assert "best/own/step-3.pt" in look_at(root).names


@pytest.mark.parametrize("by_git", [True, False], ids=["git", "no-git"])
def test_what_trmcloud_wrote_is_not_sent(
    root: Path, by_git: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is told by its content: a user's file of such a name is sent."""
    monkeypatch.setenv("TRMCLOUD_HOME", str(root / "state"))
    monkeypatch.setenv("HOME", str(tmp_path))
    put(root, "mine/receipt.html", "<!doctype html>\n<title>Receipt</title>\n")
    put(root, "mine/ledger.db", "SQLite format 3")
    put(root, "mine/standalone.json", "{}")
    put(root, "mine/spec.json", "{}")
    put(root, "mine/manifest.json", '{"name": "a web page"}')
    before = set(look_at(root).names)
    code = pack_tree(look_at(root), tmp_path / "home")
    assert {"mine/receipt.html", "mine/ledger.db", "mine/manifest.json"} <= before

    put(root, "state/plans/p-1234.json", "{}")
    for name in ("ledger.db", "ledger.head", "code/34/code.tar", "plans/p-1.json"):
        put(root, f"earlier/{name}")
    put(root, "receipt.html", f"{head_of('Receipt of r-123456')}<p>of the account")
    put(root, "receipt.html.sig", "signature")
    put(root, "trmcloud-r-123456.tar.gz")
    lives = {"run_id": "r-123456", "ledger": "l", "recipe": "trm", "lives": [], "version": 1}
    put(root, "trmcloud-run/standalone.json", json.dumps(lives))
    put(root, "trmcloud-run/spec.json", "{}")
    put(root, "trmcloud-run/runs/r-123456/trm/weights.bin")
    put(root, "best/manifest.json", mf.to_json(checkpoint(root / "best", 10, 1.5)))
    if by_git:
        git(root, "init", "-q")
        git(root, "add", "-A")
    tree = look_at(root)
    assert set(tree.names) == before
    assert pack_tree(tree, tmp_path / "home") == code, "it would count as another code"
    assert tree.fetched == ("best/",)
    lines = "\n".join(tree_lines(tree))
    assert "  · not sent, written by trmcloud: earlier/, receipt.html, receipt.html.sig" in lines
    assert why_left_out(tree, "receipt.html") == "it was written by trmcloud"


@pytest.mark.parametrize(
    ("rules", "left"),
    [
        ("*.log", {"a/x.txt", "data/y.txt", "data/keep/z.txt"}),
        ("data/", {"a/x.txt", "a/run.log"}),
        ("/a", {"data/y.txt", "data/keep/z.txt"}),
        ("x.txt", {"a/run.log", "data/y.txt", "data/keep/z.txt"}),
        ("data/*\n!data/keep/", {"a/x.txt", "a/run.log", "data/keep/z.txt"}),
        ("**/keep/**", {"a/x.txt", "a/run.log", "data/y.txt"}),
        ("# nothing\n\n", {"a/x.txt", "a/run.log", "data/y.txt", "data/keep/z.txt"}),
        ("a/?.txt", {"a/run.log", "data/y.txt", "data/keep/z.txt"}),
    ],
)
def test_an_ignore_file_leaves_out_more(root: Path, rules: str, left: set[str]) -> None:
    for name in ("a/x.txt", "a/run.log", "data/y.txt", "data/keep/z.txt"):
        put(root, name)
    (root / ".trmcloudignore").write_text(rules)
    assert set(look_at(root).names) - {"train.py", ".trmcloudignore"} == left


@pytest.mark.parametrize(
    "name",
    [".env", ".env.local", "server.pem", "id_ed25519", "sub/id_rsa", ".aws/config", "kaggle.json",
     ".netrc", "deploy.key", "credentials.json"],
)  # fmt: skip
def test_what_is_called_as_keys_are_never_goes(root: Path, name: str) -> None:
    git(root, "init", "-q")
    put(root, name)
    git(root, "add", "-f", name)
    tree = look_at(root)
    assert tree.names == ("train.py",)
    assert tree.keys == (name,)


@pytest.mark.parametrize("by_git", [True, False], ids=["git", "no-git"])
def test_nor_do_secrets_by_their_names(root: Path, by_git: bool) -> None:
    secrets = {
        "prod.env", "secrets.toml", "token", "terraform.tfvars", "config/aws.json",
        "conf/db_password.ini", "infra/terraform.tfstate", "api-key.txt", "my_secrets.yaml",
    }  # fmt: skip
    others = {
        "tokens.txt", "tokenizer.json", "special_tokens_map.json", "added_tokens.json",
        "secrets.py", "token.py", "prod.env.example", "data/tokens.bin", "train.py",
    }  # fmt: skip
    for name in secrets | others:
        put(root, name)
    if by_git:
        git(root, "init", "-q")
        git(root, "add", "-A")
    tree = look_at(root)
    assert tree.by_git is by_git
    assert set(tree.keys) == secrets
    assert set(tree.names) == others


@pytest.mark.parametrize(
    "token",
    ["AKIA" + "Q2" * 8, "hf_" + "aB" * 17, "rpa_" + "A1" * 20, "ghp_" + "a1" * 18,
     "glpat-" + "a1" * 10, "sk-ant-" + "a1" * 24, "xoxb-" + "12" * 12, "AIza" + "a1-x_" * 7],
    ids=lambda token: token[:6],
)  # fmt: skip
def test_nor_does_a_file_with_a_token_of_a_known_form(root: Path, token: str) -> None:
    put(root, "settings.py", f'KEY = "{token}"\n')
    put(root, "form.py", f'KEY = "{token[:9]}…"  # as such a key begins\n')
    tree = look_at(root)
    assert tree.keys == ("settings.py",)
    assert tree.names == ("form.py", "train.py")


def test_a_secret_is_sent_by_its_whole_name_in_the_ignore_file(root: Path) -> None:
    for name in ("prod.env", "token", "config/aws.json"):
        put(root, name)
    put(root, ".trmcloudignore", "!*\n!/config/aws.json\n!prod.env  \n!tok*\n")
    tree = look_at(root)
    assert tree.keys == ("token",)
    assert {"prod.env", "config/aws.json"} <= set(tree.names)
    lines = tree_lines(tree)
    assert "  · not sent, keys: token" in lines
    assert "    to send one anyway: a line !token in .trmcloudignore" in lines


def test_nor_does_what_holds_one(root: Path) -> None:
    put(root, "deploy", "-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n")
    put(root, "env.py", "# says -----BEGIN RSA PRIVATE KEY----- in passing")
    put(root, "id_ed25519.pub", "ssh-ed25519 AAAA")
    tree = look_at(root)
    assert tree.keys == ("deploy",)
    assert tree.names == ("env.py", "id_ed25519.pub", "train.py")


def test_links_are_left_out_and_told(root: Path) -> None:
    (root / "passwd").symlink_to("/etc/passwd")
    assert look_at(root).links == ("passwd",)


def test_what_goes_another_way_is_not_sent_twice(root: Path) -> None:
    put(root, "data/x.bin")
    assert look_at(root, ["data"]).names == ("train.py",)


def test_nothing_to_send_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there are no files to send here"):
        look_at(tmp_path)


def test_too_much_is_refused_by_its_largest(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(working_tree, "MOST_BYTES", 100)
    put(root, "data/a.bin", "a" * 90)
    put(root, "b.bin", "b" * 20)
    with pytest.raises(DataError, match="of it in data/"):
        look_at(root)


def test_too_many_files_are_refused_by_where_most_are(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(working_tree, "MOST_FILES", 5)
    put(root, "train.py", "p" * 99)
    for number in range(6):
        put(root, f"data/{number}", "")
    with pytest.raises(DataError, match="6 of them in data/") as refused:
        look_at(root)
    assert refused.value.next_step.startswith("add data/ to .trmcloudignore")
    for number in range(9):
        put(root, f"{number}.jpg", "")
    with pytest.raises(DataError, match=r"9 of them in \*\.jpg"):
        look_at(root)
    put(root, ".trmcloudignore", "data/\n*.jpg\n")
    assert "train.py" in look_at(root).names


def test_more_files_than_are_looked_at_are_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(working_tree, "MOST_FILES", 1)
    put(root, ".trmcloudignore", "*.jpg\n")
    for number in range(21):
        put(root, f"{number}.jpg", "")
    with pytest.raises(DataError, match="more than 20 files here"):
        look_at(root)


def test_a_name_that_is_too_long_to_be_sent_is_named(root: Path) -> None:
    folder = "/".join(["d" * 200] * 3)
    put(root, f"{folder}/x.py")
    with pytest.raises(DataError, match=r"d{100}.* cannot be sent: its path is longer than 512"):
        look_at(root)
    put(root, ".trmcloudignore", "d*/\n")
    assert "train.py" in look_at(root).names


def test_a_home_that_is_the_project_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRMCLOUD_HOME", str(root))
    with pytest.raises(DataError, match="this folder is TRMCLOUD_HOME"):
        look_at(root)


def test_an_ignore_file_may_begin_with_a_byte_order_mark(root: Path) -> None:
    put(root, "data/x.bin")
    (root / ".trmcloudignore").write_text("data/\n", encoding="utf-8-sig")
    assert look_at(root).names == ("train.py",)


def test_what_is_packed_is_unpacked_as_it_was(root: Path, tmp_path: Path) -> None:
    put(root, "pkg/run.sh", "#!/bin/sh\n")
    (root / "pkg/run.sh").chmod(0o755)
    folder = pack_tree(look_at(root), tmp_path / "home", {"trmcloud/x.py": b"beside"})
    assert pack_tree(look_at(root), tmp_path / "home", {"trmcloud/x.py": b"beside"}) == folder
    assert (folder / "trmcloud/x.py").read_bytes() == b"beside"
    unpack(folder, tmp_path / "work")
    found = {
        path.relative_to(tmp_path / "work").as_posix(): path.read_text()
        for path in (tmp_path / "work").rglob("*")
        if path.is_file()
    }
    assert found == {"train.py": "print(1)", "pkg/run.sh": "#!/bin/sh\n"}
    assert (tmp_path / "work/pkg/run.sh").stat().st_mode & 0o100
    put(root, "train.py", "print(2)")
    assert pack_tree(look_at(root), tmp_path / "home") != folder
    (tmp_path / "work/train.py").write_text("changed by an attempt")
    unpack(folder, tmp_path / "work")
    assert (tmp_path / "work/train.py").read_text() == "changed by an attempt"


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, b"../x"])
def test_an_archive_with_anything_else_is_refused(tmp_path: Path, kind: bytes) -> None:
    (tmp_path / "code").mkdir()
    with tarfile.open(tmp_path / "code" / "code.tar", "w") as archive:
        member = tarfile.TarInfo("x" if len(kind) == 1 else kind.decode())
        member.type = kind if len(kind) == 1 else tarfile.REGTYPE
        member.linkname = "/etc/passwd"
        archive.addfile(member)
    with pytest.raises(ValueError, match="no plain file of the working tree"):
        unpack(tmp_path / "code", tmp_path / "work")
    assert not (tmp_path / "work").exists()


def test_data_of_the_tree_stands_where_it_stood(tmp_path: Path) -> None:
    put(tmp_path, "elsewhere/train.bin", "tokens")
    (tmp_path / "work").mkdir()
    lay_data(tmp_path / "work", str(tmp_path / "elsewhere"), "data/shakespeare")
    assert (tmp_path / "work/data/shakespeare/train.bin").read_text() == "tokens"
    lay_data(tmp_path / "work", str(tmp_path / "elsewhere"), "data/shakespeare")


@pytest.mark.parametrize("size", [3 << 20, 1 << 40], ids=["3 MB", "1 TB"])
def test_an_archive_with_a_large_header_is_refused(tmp_path: Path, size: int) -> None:
    """tarfile reads a PAX header whole: its author chooses how much memory that takes."""
    (tmp_path / "code").mkdir()
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, size
    text = b"%d comment=" % size
    content = header.tobuf(tarfile.GNU_FORMAT) + text + b"x" * ((3 << 20) - len(text))
    (tmp_path / "code" / "code.tar").write_bytes(content)
    with pytest.raises(ValueError, match="a header is larger than any that is sent"):
        unpack(tmp_path / "code", tmp_path / "work")


def test_an_archive_of_headers_of_headers_is_refused(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, 1
    one = header.tobuf(tarfile.GNU_FORMAT) + b"a".ljust(512, b"\0")
    (tmp_path / "code" / "code.tar").write_bytes(one * 5000)
    with pytest.raises(ValueError, match="cannot be read"):
        unpack(tmp_path / "code", tmp_path / "work")
