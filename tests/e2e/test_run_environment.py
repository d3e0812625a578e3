"""Surroundings of a command of ``trmcloud run``: the repository around it, its packages, its
limits, and what is kept of where it came from.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.e2e.test_run import RATE, log_of
from tests.e2e.user import User
from tests.typist import InProcess
from trmcloud.core.contract.command import FOLDERS_NAME, PACKAGES_NAME, PINS_NAME
from trmcloud.core.errors import NO_CHECKPOINT_CODE, Outcome
from trmcloud.pod.job.workspace import install

FAILED = Outcome.FAILED.exit_code


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    folder = tmp_path / "repository"
    folder.mkdir()
    made = InProcess(tmp_path, cwd=folder)
    yield made
    made.end_everything()


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def git(folder: Path, *words: str) -> None:
    who = ("-c", "user.name=A", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", str(folder), *who, *words], check=True, capture_output=True)


def typed(
    user: User, *options: str, code: int = NO_CHECKPOINT_CODE, words: tuple[str, ...] = ()
) -> str:
    """Most scripts here save nothing."""
    command = ("python3", "train.py", *words)
    return user.run("run", "local", *RATE, "--budget", "0.20", *options, "--", *command, code=code)


def test_a_script_imports_from_the_repository_around_its_folder(user: User) -> None:
    top = user.here
    assert top is not None
    write(
        top,
        {
            "small/__init__.py": "NAME = 'small'",
            "src/inner.py": "NAME = 'inner'",
            "data/words.txt": "to be",
            "projects/adder/train.py": "import os, small, inner\n"
            "print('FOUND', small.NAME, inner.NAME, os.path.basename(os.getcwd()))\n"
            "print('DATA', open('../../data/words.txt').read())\n",
        },
    )
    git(top, "init", "-q")
    user.cwd = top / "projects" / "adder"
    alone = typed(user, "--dry-run", code=0)
    assert "only the folder adder of the repository is sent; --root ../.. sends all of it" in alone
    out = typed(user, "--root", "../..", "--data", "../../data")
    assert "code sent       3 files" in out
    assert "the whole of repository; the command starts in projects/adder" in out
    log = log_of(user)
    assert "FOUND small inner adder" in log
    assert "DATA to be" in log


def wheel(folder: Path, name: str, version: str, files: dict[str, str], needs: str = "") -> None:
    """A package of a few lines, as an index has it."""
    stem = f"{name}-{version}"
    about = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    about += f"Requires-Dist: {needs}\n" if needs else ""
    files = {
        **files,
        f"{stem}.dist-info/METADATA": about,
        f"{stem}.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in files) + f"{stem}.dist-info/RECORD,,\n"
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as archive:
        for path, text in {**files, f"{stem}.dist-info/RECORD": record}.items():
            archive.writestr(path, text)


INSPECTS = """
import importlib.metadata as m, os, shutil, subprocess, sys
import salute_of_ours
print("GREETING", salute_of_ours.WORD, "TORCH", m.version("torch"))
print("VENV", os.environ["VIRTUAL_ENV"] == sys.prefix, sys.prefix != sys.base_prefix)
print("TOOL", subprocess.run(["lint-imports", "--help"], capture_output=True).returncode)
print("WHERE", os.path.dirname(shutil.which("lint-imports")) == os.path.dirname(sys.executable))
"""


@pytest.fixture
def index(user: User, tmp_path: Path) -> Path:
    """A folder of wheels that pip finds instead of the network."""
    folder = tmp_path / "wheels"
    wheel(
        folder, "salute_of_ours", "1.0", {"salute_of_ours.py": "WORD = 'hello'\n"}, needs="torch>=2"
    )
    wheel(folder, "salute_of_ours", "2.0", {"salute_of_ours.py": "WORD = 'newer'\n"})
    wheel(folder, "torch", "99.0", {"torch/__init__.py": ""})
    user.environment |= {
        "TRMCLOUD_INSTALL_PIP_FIND_LINKS": str(folder),
        "TRMCLOUD_INSTALL_PIP_NO_INDEX": "1",
    }
    user.environment |= {
        "TRMCLOUD_INSTALL_PIP_CONFIG_FILE": os.devnull,
        "TRMCLOUD_INSTALL_PIP_CONSTRAINT": "",
    }
    user.environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return folder


@pytest.mark.parametrize(
    ("text", "greeting", "torch"),
    [
        ("salute-of-ours==1.0\n", "hello", version("torch")),
        ("salute-of-ours==2.0\ntorch==99.0\n", "newer", "99.0"),
    ],
    ids=["the image's torch", "another torch"],
)
def test_packages_are_installed_beside_the_images_own_torch(
    user: User, index: Path, text: str, greeting: str, torch: str
) -> None:
    write(user.here, {"train.py": INSPECTS, "requirements.txt": text})
    out = typed(user, "--pip", "requirements.txt")
    log = log_of(user)
    assert f"GREETING {greeting} TORCH {torch}" in log
    if torch == "99.0":
        assert f"the image's torch {version('torch')} is not used" in log
        return
    assert "packages        2, resolved here" in out
    assert "the image keeps its own torch" in out
    assert "VENV True True" in log
    assert "TOOL 0" in log
    assert "WHERE True" in log
    assert f"the image's torch {version('torch')} is kept" in log


@pytest.mark.parametrize(
    ("pins", "word", "told"),
    [
        ("salute-of-ours==1.0\nnot-here==1.0", "hello", ""),
        ("salute-of-ours==9.0", "newer", "other versions than the plan's"),
    ],
)
def test_the_plans_versions_are_installed_where_the_image_allows_it(
    index: Path, tmp_path: Path, pins: str, word: str, told: str
) -> None:
    """The list's variables are the command's, and not the agent's."""
    code = tmp_path / "code"
    write(
        code,
        {
            PACKAGES_NAME: "--no-index\n--find-links ${WHEELS}\nsalute-of-ours\n",
            PINS_NAME: pins,
            FOLDERS_NAME: "",
        },
    )
    environ = {"WHEELS": str(index), "PATH": os.environ["PATH"], "PIP_CONFIG_FILE": os.devnull}
    target = tmp_path / "made"
    said = install(code, tmp_path, "requirements.txt", target, time.time() + 300.0, environ)
    assert said.startswith(told)
    code_there = "import salute_of_ours; print(salute_of_ours.WORD)"
    words = [str(target / "bin" / "python"), "-c", code_there]
    assert subprocess.run(words, capture_output=True, text=True).stdout.strip() == word


SAVES = """
import os
os.makedirs("out")
print("step 1 val_loss=2.0")
with open("out/step-1.pt", "wb") as file:
    file.write(os.urandom(1000))
"""


def test_manifest_and_receipt_say_what_was_run(user: User) -> None:
    user.environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    write(user.here, {"train.py": SAVES, "words/a.txt": "to be"})
    git(user.here, "init", "-q")
    git(user.here, "add", "train.py")
    git(user.here, "commit", "-qm", "first")
    typed(user, "--data", "words", "--checkpoints", "out", code=0, words=("--lr", "3"))
    [path] = user.home.glob("runs/*/train/checkpoints/*/manifest.json")
    manifest = json.loads(path.read_text())
    about = manifest["extra"]["provenance"]
    assert about["command"] == ["python3", "train.py", "--lr", "3"]
    [code] = user.home.glob("code/*/code.tar")
    assert about["code_sha256"] == hashlib.sha256(code.read_bytes()).hexdigest()
    commit = subprocess.run(
        ["git", "-C", str(user.here), "rev-parse", "HEAD"], capture_output=True, text=True
    )
    assert about["git_commit"] == commit.stdout.strip()
    assert about["dirty"] is True, "words/ is not in the commit"
    line = f"{hashlib.sha256(b'to be').hexdigest()}  a.txt\n"
    assert manifest["data_sha256"] == hashlib.sha256(line.encode()).hexdigest()
    assert f"pytest=={version('pytest')}" in about["packages"]
    receipt = user.json("report", "--html", "receipt.html", "--json")["receipt"]
    [row] = receipt["account"]["checkpoints"]["all"]
    assert row["provenance"] == about
    page = (user.here / "receipt.html").read_text()
    assert "python3 train.py --lr 3" in page
    assert "with changes" in page


def test_a_failed_command_shows_its_last_lines_and_what_was_not_sent(user: User) -> None:
    top = user.here
    assert top is not None
    text = "for n in range(30): print('line', n)\nopen('data/train.bin')\n"
    write(top, {"train.py": text, "data/train.bin": "x", ".gitignore": "*.bin\n"})
    git(top, "init", "-q")
    out = typed(user, code=FAILED)
    for told in (out, user.run("report", user.only_run().run_id)):
        assert "  its last lines:\n" in told
        assert "  | line 29\n" in told
        assert "line 19\n" not in told
        assert "No such file or directory: 'data/train.bin'\n" in told
        assert "  missing: data/train.bin exists here but was not sent\n" in told
        assert "  try: --data data sends this folder separately from the code\n" in told
    assert "\n".join(out.splitlines()[-3:]).startswith("  missing: ")
