"""What of a working tree is sent, and what never is."""

from __future__ import annotations

import subprocess
import tarfile
from pathlib import Path

import pytest

from trmcloud.app.staging import working_tree
from trmcloud.app.staging.working_tree import look_at, pack
from trmcloud.cli.views.launch import tree_lines
from trmcloud.core.errors import DataError
from trmcloud.pod.job.working_tree import lay_data, unpack


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
    assert "  · left out, as keys: token" in lines
    assert "    to send one all the same: a line !token in .trmcloudignore" in lines


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
    with pytest.raises(DataError, match="no file to send"):
        look_at(tmp_path)


def test_too_much_is_refused_by_its_largest_part(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(working_tree, "MOST_BYTES", 100)
    put(root, "data/a.bin", "a" * 90)
    put(root, "b.bin", "b" * 20)
    with pytest.raises(DataError, match="of it in data/"):
        look_at(root)


def test_what_is_packed_is_unpacked_as_it_was(root: Path, tmp_path: Path) -> None:
    put(root, "pkg/run.sh", "#!/bin/sh\n")
    (root / "pkg/run.sh").chmod(0o755)
    folder = pack(look_at(root), tmp_path / "home", {"trmcloud/x.py": b"beside"})
    assert pack(look_at(root), tmp_path / "home", {"trmcloud/x.py": b"beside"}) == folder
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
    assert pack(look_at(root), tmp_path / "home") != folder
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
