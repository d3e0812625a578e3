"""What is sent to a pod: an allow-list, named by its content."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from trmcloud.app.staging.packing import LATER, own_sources
from trmcloud.app.staging.stage import code_item, content_key, hashes_of, remote_folder
from trmcloud.core.contract.pod_contract import POD_ROOT
from trmcloud.core.errors import DataError


def test_a_folder_is_named_by_what_is_in_it(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name / "sub").mkdir(parents=True)
        (tmp_path / name / "sub" / "train.bin").write_bytes(b"tokens")
        (tmp_path / name / ".part").write_bytes(name.encode())
    assert hashes_of(tmp_path / "one") == {"sub/train.bin": hashlib.sha256(b"tokens").hexdigest()}
    first = remote_folder("data", tmp_path / "one")
    assert first == remote_folder("data", tmp_path / "two")
    assert first.startswith(f"{POD_ROOT}/data/")
    (tmp_path / "one" / "sub" / "train.bin").write_bytes(b"others")
    assert remote_folder("data", tmp_path / "one") != first


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
