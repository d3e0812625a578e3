"""Hints that name where this installation came from."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from trmcloud.io import installation as module
from trmcloud.io.installation import Installation, install_command, installation, update_command

ROOT = Path(__file__).resolve().parents[3]
WHEEL = "file:///home/ann/Downloads/trmcloud-0.2-py3-none-any.whl"


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment in which trmcloud is installed; its ``direct_url.json`` is the test's."""
    folder = tmp_path / "site" / "trmcloud-0.2.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: trmcloud\nVersion: 0.2\n")
    monkeypatch.syspath_prepend(str(folder.parent))
    monkeypatch.setattr(module, "_pip_install", lambda: "pip install")
    return folder / "direct_url.json"


@pytest.mark.parametrize(
    ("told", "hint"),
    [
        ({"url": "file:///home/ann/my%20src", "dir_info": {"editable": True}},
         "pip install -e '/home/ann/my src[serve,train]'"),
        ({"url": WHEEL, "archive_info": {}}, f"pip install 'trmcloud[serve,train] @ {WHEEL}'"),
        ({"url": "file:///home/ann/src", "dir_info": {}},
         "pip install 'trmcloud[serve,train] @ file:///home/ann/src'"),
        ({"url": "https://git.example/t.git",
          "vcs_info": {"vcs": "git", "requested_revision": "v1", "commit_id": "ab12"}},
         "pip install 'trmcloud[serve,train] @ git+https://git.example/t.git@v1'"),
        ({"url": "https://git.example/t.git", "vcs_info": {"vcs": "git", "commit_id": "ab12"}},
         "pip install 'trmcloud[serve,train] @ git+https://git.example/t.git@ab12'"),
        ({}, "install it again from its source, as 'trmcloud[serve,train]'"),
        ([], "install it again from its source, as 'trmcloud[serve,train]'"),
        ({"url": 5}, "install it again from its source, as 'trmcloud[serve,train]'"),
    ],
)  # fmt: skip
def test_the_hint_names_the_source_of_the_installation(
    made: Path, tmp_path: Path, told: object, hint: str
) -> None:
    made.write_text(json.dumps(told))
    assert install_command("train", "serve", made=installation(tmp_path)) == hint


@pytest.mark.parametrize("text", ["", "{", "null", "\x00"])
def test_a_note_that_is_damaged_gives_a_hint_all_the_same(
    made: Path, tmp_path: Path, text: str
) -> None:
    made.write_text(text)
    assert "as 'trmcloud[ui]'" in install_command("ui", made=installation(tmp_path))


def test_a_tool_installs_again_with_the_extras_that_it_has(made: Path, tmp_path: Path) -> None:
    made.write_text(json.dumps({"url": WHEEL, "archive_info": {}}))
    receipt = tmp_path / "uv-receipt.toml"
    receipt.write_text(
        '[tool]\nrequirements = [{ name = "trmcloud", extras = ["s3"], path = "x.whl" }]\n'
    )
    assert install_command("ui", made=installation(tmp_path)) == (
        f"uv tool install --force 'trmcloud[s3,ui] @ {WHEEL}'"
    )
    receipt.write_text("[tool")
    assert "uv tool install --force 'trmcloud[ui] @" in install_command(
        "ui", made=installation(tmp_path)
    )
    receipt.unlink()
    named = {"main_package": {"package_or_url": f"trmcloud[notify, s3] @ {WHEEL}"}}
    (tmp_path / "pipx_metadata.json").write_text(json.dumps(named))
    assert install_command("ui", made=installation(tmp_path)) == (
        f"pipx install --force 'trmcloud[notify,s3,ui] @ {WHEEL}'"
    )


def test_the_pip_is_that_of_this_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wheel = Installation(WHEEL)
    tools = Path(sys.executable).parent
    monkeypatch.setenv("PATH", str(tools))
    (tmp_path / "pip").touch(mode=0o755)
    if (tools / "pip").exists():
        assert install_command("ui", made=wheel).startswith("pip install '")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert install_command("ui", made=wheel).startswith(f"{sys.executable} -m pip install '")
    monkeypatch.setattr("importlib.machinery.PathFinder.find_spec", lambda name: None)
    assert install_command("ui", made=wheel).startswith(
        f"uv pip install --python {sys.executable} '"
    )


def test_a_process_that_gave_a_hint_can_still_import_setuptools() -> None:
    """Which torch.compile does: a failed import in the same process named its package before."""
    code = (
        "from trmcloud.io.installation import install_command as named\n"
        "named('ui')\n"
        "import distutils.core, setuptools, distutils.core\n"
        "print('_distutils' in distutils.core.__file__)"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", code], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


def test_an_update_is_named_where_it_is_known() -> None:
    assert update_command(Installation("/home/ann/src", True)) == "git -C /home/ann/src pull"
    assert update_command(Installation(WHEEL)) == "install a newer trmcloud"


def test_nothing_claims_to_be_published() -> None:
    """No text has a command that would ask a package index for our name."""
    claim = re.compile(
        r"(pip|pipx|uv|tool) install (-\S+ )*['\"]?trmcloud(\[[a-z0-9,-]+\])?['\"]?(?![\w@/ ]* @)"
    )
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    pages += [path for room in ("trmcloud", "model") for path in (ROOT / room).rglob("*.py")]
    told = [
        f"{path.relative_to(ROOT)}: {found[0]}"
        for path in pages
        if "decisions" not in path.parts and path.name != "log.md"
        for found in claim.finditer(path.read_text(encoding="utf-8"))
    ]
    assert told == []
