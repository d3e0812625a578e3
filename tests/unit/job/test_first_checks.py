"""A command's first minutes: what must fail ends it before it starts, what would work is let be."""

from __future__ import annotations

import ast
import os
import shutil
import socket
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests import pythons
from tests.standins import scripts
from trmcloud.core.contract.command import Command
from trmcloud.pod.job import script_check
from trmcloud.pod.job.first_checks import FirstChecks, entry_of

OWN = Path(__file__).parents[2] / "own" / "scripts"
PYTHON = ("python3", "train.py")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The folder of a command; packages of its interpreter are in ``site`` beside it."""
    for name in ("work", "site", "bin"):
        (tmp_path / name).mkdir()
    for name in ("python", "python3"):
        (tmp_path / "bin" / name).symlink_to(sys.executable)
    # A launcher is a script in Python, as pip lays it.
    for name in ("torchrun", "accelerate"):
        lay(tmp_path / "bin", {name: f"#!{sys.executable}\n"})
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path / "work"


def lay(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


def variables(tree: Path, **more: str) -> dict[str, str]:
    path = os.pathsep.join((str(tree.parent / "bin"), os.environ["PATH"]))
    site = str(tree.parent / "site")
    return {"PATH": path, "HOME": str(tree.parent), "PYTHONPATH": site, **more}


def why(tree: Path, script: str, words: tuple[str, ...] = PYTHON, **more: str) -> str:
    """Why a command with this entry script must fail."""
    lay(tree, {"train.py": script})
    return FirstChecks(Command(words)).fails(words, str(tree), variables(tree, **more))


# -- what must fail -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("import os\nimport nowhere, os.path\nfrom gone.parts import x\n",
         "train.py, line 2: No module named 'nowhere', No module named 'gone': add the package to "
         "requirements.txt, and pass --pip requirements.txt"),
        ("from torch import nn\nclass Net(nn.Module):\n    size = 3\nimport nowhere\n",
         "train.py, line 4: No module named 'nowhere'"),
        ("def f(:\n    pass\n", "train.py, line 1: invalid syntax (Python 3."),
        ("import json\nmade = json.load(open('data/a.json'))\n",
         "train.py, line 2: No such file or directory: 'data/a.json': send it with --data DIR"),
        ("from os import environ as e\nKEY = e['SOME_KEY']\n",
         "train.py, line 2: the variable SOME_KEY is not set: pass --env SOME_KEY"),
    ],
)  # fmt: skip
def test_what_is_certain_to_fail_is_named_with_what_to_change(
    tree: Path, script: str, said: str
) -> None:
    lay(tree.parent / "site", {"torch/__init__.py": "raise SystemExit('it is never imported')"})
    assert said in why(tree, script)
    ran = subprocess.run(
        PYTHON, cwd=tree, env=variables(tree), capture_output=True, text=True, timeout=60
    )
    assert ran.returncode, "it would have failed"


def test_each_launcher_leads_to_the_script(tree: Path) -> None:
    lost = "import nowhere"
    for words in (
        ("torchrun", "--nproc_per_node", "2", "train.py", "--lr", "1"),
        ("accelerate", "launch", "train.py"),
        ("python", "-u", "train.py"),
        ("env", "X=1", "python", "train.py"),
        (sys.executable, "train.py"),
    ):
        assert "No module named 'nowhere'" in why(tree, lost, words), words
    assert "No such file or directory: 'other.py'" in why(tree, lost, ("python3", "other.py"))


def test_a_syntax_that_is_newer_than_the_commands_python_is_found_by_that_python(
    tree: Path,
) -> None:
    older = {version: path for version, path in pythons.found().items() if version < (3, 12)}
    version, python = next(iter(older.items()), (None, None))
    if version is None:
        pytest.skip("no Python before 3.12 is here")
    told = why(tree, "type Row = list[int]\n", (str(python), "train.py"))
    assert f"(Python {version[0]}.{version[1]}." in told
    assert "an --image with the Python that it needs" in told


def test_the_option_that_was_given_is_the_one_to_change(tree: Path) -> None:
    lay(tree, {"train.py": "import nowhere"})
    command = Command(PYTHON, pip="env/packages.txt")
    told = FirstChecks(command).fails(PYTHON, str(tree), variables(tree))
    assert told.endswith("add the package to env/packages.txt, and pass --pip env/packages.txt")
    off = FirstChecks(Command(PYTHON, unchecked=True))
    assert off.fails(PYTHON, str(tree), variables(tree)) == ""


# -- what would work, or may ----------------------------------------------------------------------


@pytest.mark.parametrize("script", sorted(OWN.glob("*.py")), ids=lambda path: path.stem)
def test_the_corpus_passes_where_its_packages_are(tree: Path, script: Path) -> None:
    text = script.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text)):
        names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        tops = {name.partition(".")[0] for name in names} - sys.stdlib_module_names
        lay(tree.parent / "site", {f"{top}/__init__.py": "" for top in tops})
    words = ("torchrun", "train.py") if "torchrun" in script.stem else PYTHON
    assert why(tree, text, words) == ""


@pytest.mark.parametrize(
    "script",
    [
        scripts.POLITE,
        "import sys\nsys.path.insert(0, 'lib')\nimport inner\n",
        "import sys\nsys.path += ['lib']\nimport inner\n",
        "import sys\nsys.path[:0] = ['lib']\nimport inner\n",
        "from sys import path\npath.append('lib')\nimport inner\n",
        "import paths\nimport inner\n",
        "import datasets.paths\nimport inner\n",
        "import datasets\nimport inner\n",
        "import subprocess, sys\nsubprocess.run([sys.executable, '-m', 'pip', 'install', 'x'])\n"
        "import nowhere\n",
        "import os\nif os.system('pip install nowhere'): pass\nimport nowhere\n",
        "try:\n    import nowhere\nexcept ImportError:\n    nowhere = None\n",
        "try:\n    import nowhere\nexcept ImportError:\n    raise SystemExit(0)\nimport gone\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from nowhere import X\n",
        "import typing as t\nif t.TYPE_CHECKING:\n    from nowhere import X\n",
        "import sys\nif sys.platform == 'win32':\n    import nowhere\n",
        "def f():\n    import nowhere\n",
        "import sys\nsys.exit(0)\nimport nowhere\n",
        "import sys\ndef deco(f): sys.exit(0)\n@deco\ndef g(): pass\nimport nowhere\n",
        "import sys\nX = [sys.exit(0)]\nimport nowhere\n",
        "import space.inner\nimport space\n",
        "import edited\n",
        "import __main__, os.path, xml.etree\n",
        "import types, sys\nsys.modules['nowhere'] = types.ModuleType('nowhere')\nimport nowhere\n",
        "import hooks\nimport nowhere\n",
        "import os\nos.environ['A'] = 'x'\nB = os.environ['A']\n",
        "import os\nos.environ.setdefault('A', 'x')\nB = os.environ['A']\n",
        "import os\nos.environ.update(A='x')\nB = os.environ['A']\n",
        "import os\nB = os.environ['A'] if 'A' in os.environ else 1\n",
        "import os\nB = 'A' in os.environ and os.environ['A']\n",
        "import os\ntry:\n    B = os.environ['A']\nexcept KeyError:\n    B = 1\n",
        "import os\nf = lambda: os.environ['A']\n",
        "import os\nB = os.environ['GIVEN']\n",
        "import os\nB = os.environ['OF_SITE']\n",
        "with open('new.txt', 'w') as file:\n    file.write('x')\nopen('new.txt').read()\n",
        "import pathlib\npathlib.Path('a.txt').write_text('x')\nopen('a.txt').read()\n",
        "def open(name): return name\nx = open('nowhere.txt')\n",
        "from io import StringIO as open\nx = open('nowhere.txt')\n",
        "x = False and open('nowhere.txt')\n",
        "import os\nx = open('nowhere.txt', opener=lambda name, flags: os.dup(0))\n",
        "x = [open('nowhere.txt') for _ in ()]\n",
        "import contextlib\nwith contextlib.suppress(OSError):\n    open('nowhere.txt')\n",
        "open('here.txt').read()\n",
        "# -*- coding: latin-1 -*-\nx = 1\n",
        "x = 'an address: https://127.0.0.1:9/never is no constant of its own'\n",
    ],
)
def test_a_script_that_works_is_let_be(tree: Path, script: str) -> None:
    site = tree.parent / "site"
    lay(tree, {
        "lib/inner.py": "", "space/inner.py": "", "here.txt": "x",
        "paths.py": "import sys\nsys.path.append('lib')\n",
        "datasets/__init__.py": "import paths",
        "datasets/paths.py": "",
    })  # fmt: skip
    # As an editable install has it, and a package that makes another one importable.
    lay(site, {
        "sitecustomize.py": "import os, sys\nos.environ['OF_SITE'] = 'x'\n"
        f"sys.path.append({str(tree.parent / 'elsewhere')!r})\n",
        "trmcloud_job.py": "",
        "hooks/__init__.py": "import sys, types\nsys.modules['nowhere'] = types.ModuleType('n')\n",
    })  # fmt: skip
    lay(tree.parent, {"elsewhere/edited.py": "", "pip/nowhere.py": ""})
    assert why(tree, script, GIVEN="x") == ""
    pip = tree.parent / "bin" / "pip"
    pip.write_text(f"#!/bin/sh\ncp {tree.parent}/pip/nowhere.py {site}\n")
    pip.chmod(0o755)
    lay(site, {"pip.py": f"import shutil\nshutil.copy({str(tree.parent / 'pip/nowhere.py')!r}, "
               f"{str(site)!r})\n"})  # fmt: skip
    ran = subprocess.run(
        PYTHON, cwd=tree, env=variables(tree, GIVEN="x", TRMCLOUD_REPORTS=os.devnull,
                                        TRMCLOUD_DEADLINE_AT="0", TRMCLOUD_STOP_FILE="train.py"),
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    if script is not scripts.POLITE:
        assert ran.returncode == 0, f"no case of one that works: {ran.stderr}"


@pytest.mark.parametrize(
    "words",
    [
        ("bash", "run.sh"), ("uv", "run", "train.py"), ("python3", "-c", "import nowhere"),
        ("jupyter", "nbconvert", "--execute", "a.ipynb"), ("./train.py",), ("python3",),
        ("python3", "-i", "train.py"), ("python3", "-m", "pkg", "train.py"),
        ("python3", "-m", "json.tool"), ("torchrun", "-m", "train.py"), ("env", "-i", *PYTHON),
        ("accelerate", "launch", "--no_python", "train.py"), ("conda", "run", *PYTHON), ("env",),
        ("accelerate", "launch", "sub/train.py"), ("python3", "zipped.py"),
        ("torchrun", "other.py"), ("env", "PYTHONPATH=lib:src", "python3", "train.py"),
    ],
)  # fmt: skip
def test_a_command_whose_script_is_not_certain_is_not_checked(
    tree: Path, words: tuple[str, ...]
) -> None:
    lay(tree, {"pkg/__main__.py": "", "src/nowhere.py": "", "sub/train.py": "import helper"})
    lay(tree, {"helper.py": ""})
    with zipfile.ZipFile(tree / "zipped.py", "w") as archive:
        archive.writestr("__main__.py", "")
    assert why(tree, "import nowhere", words) == ""


def test_a_package_of_the_tree_around_the_folder_may_change_what_is_importable(tree: Path) -> None:
    lay(tree, {"datasets/__init__.py": "", "sub/train.py": "import datasets\nimport nowhere\n"})
    command, folder = Command(PYTHON, folder="sub"), str(tree / "sub")
    given = variables(tree, PYTHONPATH=str(tree))
    assert FirstChecks(command).fails(PYTHON, folder, given) == ""
    assert FirstChecks(Command(PYTHON)).fails(PYTHON, folder, given), "one outside is known"


def test_a_launcher_may_set_the_variable(tree: Path) -> None:
    script = "import os\nRANK = os.environ['RANK']\n"
    assert why(tree, script, ("torchrun", "train.py")) == ""
    assert why(tree, script, ("env", "RANK=0", *PYTHON)) == ""
    assert "--env RANK" in why(tree, script)


def test_a_script_for_a_python_that_cannot_read_this_file_is_not_checked(tree: Path) -> None:
    (tree.parent / "bin" / "python3").unlink()
    lay(tree.parent / "bin", {"python3": "#!/bin/sh\necho '[]'; echo broken >&2; exit 1\n"})
    (tree.parent / "bin" / "python3").chmod(0o755)
    assert why(tree, "import nowhere") == ""


# -- the driver, hosts, and the places of checkpoints ---------------------------------------------


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_a_torch_that_is_too_new_for_the_driver_is_a_warning_and_a_crash_by_it_the_end(
    tree: Path,
) -> None:
    source, library = tree.parent / "cuda.c", tree.parent / "libcuda.so.1"
    source.write_text("int cuDriverGetVersion(int *has) { *has = 12040; return 0; }")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    lay(tree.parent / "site", {"torch/__init__.py": ""})
    lay(tree, {"train.py": "from torch import nn\nimport argparse\n"})
    for built, told in (("13.0", True), ("12.8", False), ("11.8", False)):
        text = f"from typing import Optional\ncuda: Optional[str] = '{built}'\nhip = None\n"
        lay(tree.parent / "site", {"torch/version.py": text})
        checks = FirstChecks(Command(PYTHON))
        given = variables(tree, LD_LIBRARY_PATH=str(tree.parent))
        assert checks.fails(PYTHON, str(tree), given) == "", "it may train on the CPU"
        warned = checks.notes(0.0, printed=True, work=0.0, waits=bool)
        assert bool(warned) is told
        if told:
            assert "which has 12.4: install a torch for CUDA 12 with --pip" in warned[0]
    assert crash(
        "RuntimeError: The NVIDIA driver on your system is too old (found version 12040). Please"
    ) == ("bad_config", script_check.old_driver("the CUDA of its torch", 12040))


def test_a_host_that_cannot_be_reached_explains_the_crash_that_names_it(tree: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # a port without a server
        host = f"127.0.0.1:{closed.getsockname()[1]}"
        lay(tree, {"train.py": f"URL = 'http://{host}/words.txt'\n"})
        checks = FirstChecks(Command(PYTHON))
        assert checks.fails(PYTHON, str(tree), variables(tree)) == ""
        proxied = FirstChecks(Command(PYTHON))
        proxied.fails(PYTHON, str(tree), variables(tree, HTTPS_PROXY="http://x"))
    told = f"{host} cannot be reached from this machine (Connection refused): send the data with"
    assert checks.warnings[0].startswith(told)
    assert not checks.notes(0.0, printed=True, work=0.0, waits=bool), "it may need none of it"
    assert not proxied.warnings
    checks.saw(b"urllib.error.URLError: <urlopen error [Errno 111] Connection refused>")
    assert checks.crash() is None, "it may be another host"
    checks.saw(f"ConnectionError: HTTPConnectionPool(host='127.0.0.1'): {host}".encode())
    found = checks.crash()
    assert found is not None
    assert found[1].startswith(told)


def test_a_place_of_checkpoints_that_cannot_be_written_ends_it(tree: Path) -> None:
    words = ("bash", "run.sh")

    def said(checkpoints: str, size: int = 1000) -> str:
        command = Command(words, checkpoints=checkpoints, checkpoint_bytes=size)
        return FirstChecks(command).fails(words, str(tree), variables(tree))

    shut = tree / "shut"
    shut.mkdir(mode=0o500)
    if os.geteuid() == 0:
        shut = Path("/sys")
    assert f"'{shut}': name a folder that can be written" in said(str(shut))
    assert said(f"{shut}:out") == "", "one of them will do"
    assert said("out/deep/er/ckpt-*.pt:~/models") == ""
    assert said("") == ""


def test_a_disk_without_room_for_two_checkpoints_ends_it_where_their_size_was_given(
    tree: Path,
) -> None:
    free, words = shutil.disk_usage(tree).free, ("bash", "run.sh")
    checks = FirstChecks(Command(words, checkpoint_bytes=free))
    told = checks.fails(words, str(tree), variables(tree))
    assert "GB are free, too few for two checkpoints of" in told
    assert "--checkpoint-gb" in told
    assert FirstChecks(Command(words)).fails(words, str(tree), variables(tree)) == ""


# -- what the first minutes show ------------------------------------------------------------------


def crash(*lines: str) -> tuple[str, str] | None:
    checks = FirstChecks(Command(PYTHON))
    for line in lines:
        checks.saw(line.encode())
    return checks.crash()


@pytest.mark.parametrize(
    ("lines", "outcome", "said"),
    [
        (["torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20 MiB. GPU 0 has a total "
          "capacity of 23.65 GiB of which 5 MiB is free"], "out_of_memory", "any --memory 46"),
        (["[rank0]: torch.cuda.OutOfMemoryError: CUDA out of memory. Tried",
          "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: "],
         "out_of_memory", "smaller batch"),
        (["jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while"],
         "out_of_memory", "any --memory 48"),
        (["ModuleNotFoundError: No module named 'nowhere.parts'",
          "subprocess.CalledProcessError: Command '['python', 'train.py']' returned non-zero"],
         "bad_config", "No module named 'nowhere': add the package"),
        (["FileNotFoundError: [Errno 2] No such file or directory: 'data/x.bin'"],
         "bad_config", "--data DIR"),
    ],
)  # fmt: skip
def test_a_crash_that_another_start_would_repeat_is_named(
    lines: list[str], outcome: str, said: str
) -> None:
    found = crash("step 1", *lines, "wandb: synced")
    assert found is not None
    assert found[0] == outcome
    assert said in found[1]


@pytest.mark.parametrize(
    "lines",
    [
        [], ["10 %"], ["RuntimeError: NCCL error"], ["KeyError: 'X'"],
        ["FileNotFoundError: [Errno 2] No such file or directory: 'nvcc'"],
        ["FileNotFoundError: [Errno 2] No such file or directory: '/tmp/pymp-1/listener-2'"],
        ["torch.OutOfMemoryError: CUDA out of memory.", "halved the batch",
         "ConnectionError: reset by peer"],
        ['  File "/usr/lib/python3.11/os.py", line 679, in __getitem__', "KeyError: 'X'", "again",
         *["a line"] * 5, "KeyError: 'Y'"],
    ],
)  # fmt: skip
def test_any_other_crash_is_started_again(lines: list[str]) -> None:
    assert crash(*lines) is None


@pytest.mark.parametrize("version", sorted(pythons.found()), ids=str)
def test_a_variable_that_a_function_lacks_is_named_by_the_traceback_of_each_python(
    tree: Path, version: tuple[int, int]
) -> None:
    lay(tree, {"train.py": "import os\ndef main():\n    return os.environ['SOME_KEY']\nmain()\n"})
    ran = subprocess.run(
        [pythons.found()[version], "train.py"], cwd=tree, capture_output=True, text=True, timeout=60
    )
    assert crash(*ran.stderr.splitlines()) == (
        "bad_config", "the variable SOME_KEY is not set: pass --env SOME_KEY"
    )  # fmt: skip
    lay(tree, {"train.py": "{}['SOME_KEY']\n"})
    ran = subprocess.run(
        [pythons.found()[version], "train.py"], cwd=tree, capture_output=True, text=True, timeout=60
    )
    assert crash(*ran.stderr.splitlines()) is None


def test_a_command_that_computes_nothing_and_prints_nothing_is_a_warning() -> None:
    def noted(checks: FirstChecks, at: float, *, printed: bool = False) -> bool:
        return bool(checks.notes(at, printed=printed, work=1.0, waits=bool))

    checks, off = FirstChecks(Command(PYTHON)), FirstChecks(Command(PYTHON, unchecked=True))
    assert [noted(checks, at) for at in (0.0, 59.0, 61.0)] == [False, False, True]
    assert not noted(checks, 62.0, printed=True)
    assert [noted(off, at) for at in (0.0, 61.0)] == [False, False]


HANGS = """
import os, first
import waits
try:
    import optional
except ImportError:
    pass
import later
"""


@pytest.mark.parametrize(
    ("begun", "connected", "until_s", "ended"),
    [
        (("first", "waits"), False, 149.0, False),
        (("first", "waits"), False, 151.0, True),
        (("first", "waits"), True, 151.0, False),
        (("first", "waits", "inner", "later"), False, 151.0, False),
        ((), False, 151.0, False),
    ],
    ids=["not so long", "hangs", "downloads", "all have begun", "not observed"],
)
def test_a_hang_at_an_import_is_ended_where_more_of_them_would_follow(
    tree: Path, begun: tuple[str, ...], connected: bool, until_s: float, ended: bool
) -> None:
    lay(tree, {"train.py": HANGS, **dict.fromkeys(("first.py", "waits.py", "later.py"), "")})
    checks = FirstChecks(Command(PYTHON))
    assert not checks.fails(PYTHON, str(tree), variables(tree))
    for module in begun:
        checks.importing(module)
    for at in (0.0, 61.0, until_s):
        checks.notes(at, printed=False, work=1.0, waits=lambda: connected)
    assert checks.stuck.startswith("it hangs at the import of 'waits': ") is ended
    assert bool(checks.stuck) is ended


def test_work_puts_off_the_end_of_a_hang(tree: Path) -> None:
    lay(tree, {"train.py": HANGS, **dict.fromkeys(("first.py", "waits.py", "later.py"), "")})
    checks = FirstChecks(Command(PYTHON))
    assert not checks.fails(PYTHON, str(tree), variables(tree))
    checks.importing("waits")
    for at in (0.0, 140.0, 280.0):
        checks.notes(at, printed=False, work=at / 100, waits=bool)
    assert not checks.stuck


def test_the_interpreter_of_a_launcher_is_the_one_that_its_first_line_names(tree: Path) -> None:
    found = entry_of(("torchrun", "train.py"), str(tree), variables(tree))
    assert found is not None
    assert (found[0], found[1], found[3]) == ([sys.executable], "train.py", False)
    lay(tree.parent / "bin", {"torchrun": "#!/bin/sh\nexec python3 -m torch.distributed.run\n"})
    assert entry_of(("torchrun", "train.py"), str(tree), variables(tree)) is None


def test_the_checks_import_nothing_of_the_tree(tree: Path) -> None:
    names = (
        *("socket", "ctypes", "stringprep", "linecache", "tokenize", "tracemalloc", "selectors"),
        *("encodings", "unicodedata", "token", "importlib", "idna"),
    )
    ran = tree / "ran"
    lay(tree, {f"{name}.py": f"open({str(ran)!r}, 'a').write({name!r})" for name in names})
    script = "URL = 'http://data.no-such-host.invalid/x.bin'\nS = '\\d'\nprint(1)\n"
    why(tree, script)
    assert not ran.exists(), ran.read_text()
