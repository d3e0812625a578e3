"""Git's list of a folder that may be another party's, and the comparison with its commit.

The git that runs is the real one. ``status`` and ``diff`` would start programs that the repository
names; git itself says in each case of ``CHANGES`` whether the folder differs.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trmcloud.cli.views.launch import tree_lines
from trmcloud.core.errors import DataError
from trmcloud.operations.commands.commands import CommandRequest, _python_here, command_of
from trmcloud.operations.commands.trial_facts import _packages
from trmcloud.operations.sending.git_tree import GitStopped
from trmcloud.operations.sending.working_tree import (
    differs_from_commit,
    look_at,
    pack,
    why_left_out,
)
from trmcloud.pod.job.workspace import unpack

GIT = shutil.which("git") or "git"


@pytest.fixture(autouse=True)
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's home, without any configuration of git."""
    home = tmp_path / "user"
    home.mkdir()
    for name in [each for each in os.environ if each.startswith(("GIT_", "XDG_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("TRMCLOUD_HOME", str(tmp_path / "trmcloud"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    return home


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    put(made / "train.py", "print(1)\n")
    put(made / "pkg/deep/run.sh", "#!/bin/sh\n")
    put(made / "notes/a.txt", "a\n")
    git(made, "init", "-q", "-b", "main")
    commit(made)
    return made


def put(path: Path, text: str = "x", mode: int = 0o644) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="")
    path.chmod(mode)
    return path


def git(root: Path, *words: str, given: str | None = None) -> str:
    names = ("-c", "user.name=n", "-c", "user.email=a@b", "-c", "protocol.file.allow=always")
    done = subprocess.run(
        [GIT, "-C", str(root), *names, *words], check=True, capture_output=True, text=True,
        input=given,
    )  # fmt: skip
    return done.stdout.strip()


def commit(root: Path) -> None:
    git(root, "add", "-A")
    git(root, "commit", "-q", "--no-gpg-sign", "-m", "x")


def wrapped(folder: Path, line: str) -> Path:
    """A git that does ``line`` first."""
    return put(folder / "git", f'#!/bin/sh\n{line}\nexec {GIT} "$@"\n', 0o755)


# -- programs that a repository names -------------------------------------------------------------


def _fsmonitor(root: Path, spy: Path) -> None:
    git(root, "config", "core.fsmonitor", str(spy))


def _filter(root: Path, spy: Path) -> None:
    put(root / ".gitattributes", "*.py filter=x diff=x\n")
    commit(root)
    for name in ("filter.x.clean", "filter.x.process", "filter.x.smudge", "diff.x.textconv"):
        git(root, "config", name, str(spy))
    git(root, "config", "filter.x.required", "true")
    put(root / "train.py", "print(2)\n")


def _hooks(root: Path, spy: Path) -> None:
    for name in (
        "post-index-change",
        "fsmonitor-watchman",
        "query-watchman",
        "reference-transaction",
    ):
        shutil.copy(spy, root / ".git/hooks" / name)
    git(root, "config", "core.hooksPath", str(root / ".git/hooks"))
    put(root / "train.py", "print(1)\n")
    os.utime(root / "train.py", (1, 1))  # status would refresh the index


def _words(root: Path, spy: Path) -> None:
    for name in ("core.pager", "core.sshCommand", "core.editor", "pager.ls-files", "core.askPass"):
        git(root, "config", name, str(spy))
    git(root, "config", "alias.ls-files", f"!{spy}")


def _promisor(root: Path, spy: Path) -> None:
    """Its commit's folder is missing, and would be fetched by a program that it names."""
    for name, value in (
        ("remote.origin.url", str(root / "elsewhere")), ("remote.origin.promisor", "true"),
        ("remote.origin.uploadpack", str(spy)), ("extensions.partialClone", "origin"),
        ("core.repositoryFormatVersion", "1"), ("protocol.allow", "always"),
    ):  # fmt: skip
        git(root, "config", name, value)
    tree = git(root, "rev-parse", "HEAD^{tree}")
    (root / ".git/objects" / tree[:2] / tree[2:]).unlink()


def _submodule(root: Path, spy: Path) -> None:
    inner = root / "inner"
    put(inner / "x.py")
    git(inner, "init", "-q")
    commit(inner)
    git(root, "-c", "advice.addEmbeddedRepo=false", "add", "inner")
    git(root, "commit", "-q", "-m", "y")
    put(inner / ".gitattributes", "*.py filter=x\n")
    git(inner, "config", "core.fsmonitor", str(spy))
    git(inner, "config", "filter.x.clean", str(spy))
    put(inner / "x.py", "changed")


@pytest.mark.parametrize("lay", [_fsmonitor, _filter, _hooks, _words, _promisor, _submodule])
def test_nothing_that_a_repository_names_is_run(
    root: Path, tmp_path: Path, lay: Callable[[Path, Path], None]
) -> None:
    spy = put(tmp_path / "spy", f"#!/bin/sh\ntouch {tmp_path / 'ran'}\ncat\n", 0o755)
    lay(root, spy)
    (tmp_path / "ran").unlink(missing_ok=True)
    assert "train.py" in look_at(root).names
    assert not (tmp_path / "ran").exists()


def test_a_bare_repository_in_the_tree_is_not_used(root: Path, tmp_path: Path) -> None:
    spy = put(tmp_path / "spy", f"#!/bin/sh\ntouch {tmp_path / 'ran'}\n", 0o755)
    bare = root / "bare"
    git(root, "init", "-q", "--bare", "bare")
    git(bare, "config", "core.fsmonitor", str(spy))
    git(bare, "config", "core.worktree", str(root / "notes"))
    git(bare, "config", "core.bare", "false")
    put(bare / "run.py")
    with pytest.raises(DataError, match="bare git repository inside another one") as refused:
        look_at(bare)
    assert refused.value.next_step == f"cd {root}"
    assert not (tmp_path / "ran").exists()


def test_git_runs_apart_from_the_keys_and_knows_three_words(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    wrapped(tmp_path / "bin", f'(pwd; echo "$@"; env) >>{log}')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("RUNPOD_API_KEY", "canary")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other"))
    put(root / "new.py")
    look_at(root)
    said = log.read_text()
    assert "canary" not in said
    assert "GIT_DIR=" not in said
    in_tree = [line for line in said.splitlines() if "-c core.fsmonitor= " in line]
    assert {line.split("core.untrackedCache=false ")[1].split()[0] for line in in_tree} == {
        "rev-parse", "ls-files",
    }  # fmt: skip
    assert len([line for line in said.splitlines() if line == str(root)]) == len(in_tree)


def test_a_git_in_the_tree_is_not_the_one_that_runs(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapped(root / ".venv/bin", f"touch {tmp_path / 'ran'}")
    monkeypatch.setenv("PATH", f"{root / '.venv/bin'}:/usr/bin:/bin")
    assert look_at(root).by_git
    monkeypatch.setenv("PATH", str(root / ".venv/bin"))
    with pytest.raises(DataError, match="only git on PATH"):
        look_at(root)
    assert not (tmp_path / "ran").exists()


# -- whose list it is -----------------------------------------------------------------------------


def test_a_working_folder_elsewhere_is_not_listed(root: Path, tmp_path: Path) -> None:
    put(tmp_path / "private/train.py")
    put(tmp_path / "private/hidden.txt")
    put(root / "hidden.txt")
    put(root / ".gitignore", "hidden.txt\n")
    git(root, "config", "core.worktree", str(tmp_path / "private"))
    tree = look_at(root)
    assert tree.names == (".gitignore", "notes/a.txt", "pkg/deep/run.sh", "train.py")


def test_a_file_behind_a_link_is_not_sent(root: Path, tmp_path: Path) -> None:
    """An index may list files in a folder that is a link by now."""
    put(tmp_path / "private/plan.py", "private\n")
    blob = git(root, "rev-parse", "HEAD:train.py")
    (root / "out").symlink_to(tmp_path / "private")
    git(root, "update-index", "--add", "--cacheinfo", f"100644,{blob},out/plan.py")
    tree = look_at(root)
    assert "out/plan.py" in tree.links
    assert "out/plan.py" not in tree.names


def test_a_folder_that_becomes_a_link_is_not_read(root: Path, tmp_path: Path) -> None:
    put(tmp_path / "private/a.txt", "private\n")
    tree = look_at(root)
    shutil.rmtree(root / "notes")
    (root / "notes").symlink_to(tmp_path / "private")
    with pytest.raises(DataError, match="cannot be made"):
        pack(tree, tmp_path / "home")


def test_a_linked_worktree_and_a_submodule_have_their_own_lists(root: Path, tmp_path: Path) -> None:
    git(root, "worktree", "add", "-q", str(tmp_path / "second"))
    assert look_at(tmp_path / "second").names == look_at(root).names
    git(root, "submodule", "--quiet", "add", str(tmp_path / "second"), "lib")
    tree = look_at(root / "lib")
    assert tree.by_git
    assert (tree.names, tree.above) == (look_at(tmp_path / "second").names, "")


def _cloned(root: Path, tmp_path: Path) -> Path:
    """A submodule in ``vendor/lib``, and beside it an untracked clone ``mine``."""
    lib = put(tmp_path / "lib/lib.py").parent
    git(lib, "init", "-q", "-b", "main")
    commit(lib)
    git(root, "submodule", "--quiet", "add", str(lib), "vendor/lib")
    commit(root)
    git(root, "clone", "-q", str(lib), "mine")
    put(root / "mine/new.py")
    return lib


def test_the_files_of_submodules_and_clones_are_sent(root: Path, tmp_path: Path) -> None:
    _cloned(root, tmp_path)
    tree = look_at(root)
    assert {"vendor/lib/lib.py", "mine/lib.py", "mine/new.py"} < {*tree.names}
    assert tree.git is not None
    assert tree.git.unlisted == {}
    assert differs_from_commit(tree), "the clone is in no commit"
    shutil.rmtree(root / "mine")
    assert not differs_from_commit(look_at(root))
    put(root / "vendor/lib/lib.py", "changed")
    assert differs_from_commit(look_at(root))
    commit(root / "vendor/lib")
    assert differs_from_commit(look_at(root)), "the submodule is at another commit"
    put(root / ".trmcloudignore", "vendor/\n")
    assert "vendor/lib/lib.py" not in look_at(root).names


def test_repositories_that_are_not_sent_are_named_with_a_remedy(root: Path, tmp_path: Path) -> None:
    _cloned(root, tmp_path)
    git(root, "worktree", "add", "-q", "other", "-b", "other")
    git(root, "submodule", "--quiet", "deinit", "-f", "vendor/lib")
    (root / "mine/.git/HEAD").write_text("junk")
    tree = look_at(root)
    assert tree.git is not None
    told = tree.git.unlisted
    assert told["vendor/lib"] == "it is empty here; git submodule update --init"
    assert told["other"].endswith("cd there to send it")
    assert why_left_out(tree, "other/train.py").startswith("the repository other is not sent")
    lines = tree_lines(tree)
    assert any("the repository vendor/lib: it is empty here" in line for line in lines)
    assert {"mine/lib.py", "train.py"} < {*tree.names}, "git lists a damaged clone as a folder"


def test_a_clone_that_git_refuses_is_named_and_the_rest_is_sent(root: Path, tmp_path: Path) -> None:
    _cloned(root, tmp_path)
    (root / "mine/.git/config").unlink()
    (root / "mine/.git/config").symlink_to(tmp_path / "elsewhere")
    tree = look_at(root)
    assert tree.git is not None
    assert "a link to another place" in tree.git.unlisted["mine"]
    assert {"vendor/lib/lib.py", "train.py"} < {*tree.names}


def test_names_that_are_not_utf_8_are_sent_and_compared(root: Path, tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9 #1/-x.py")
    put(root / name, "print(2)")
    tree = look_at(root)
    assert name in tree.names
    unpack(pack(tree, tmp_path / "home"), tmp_path / "work")
    assert (tmp_path / "work" / name).read_text() == "print(2)"
    commit(root)
    assert not differs_from_commit(look_at(root))


def test_a_folder_below_the_top_is_listed_by_its_own_names(root: Path) -> None:
    tree = look_at(root / "pkg/deep")
    assert (tree.names, tree.above) == (("run.sh",), "../..")
    assert tree.git_commit == git(root, "rev-parse", "HEAD")


# -- what the user ignores everywhere -------------------------------------------------------------


def _usual_place(user: Path) -> None:
    put(user / ".config/git/ignore", "*.private\n")


def _xdg(user: Path) -> None:
    os.environ["XDG_CONFIG_HOME"] = str(user / "xdg")  # the fixture's patch puts it back
    put(user / "xdg/git/ignore", "*.private\n")


def _named(user: Path) -> None:
    put(user / ".gitconfig", "[core]\n\texcludesFile = ~/ignored everywhere\n")
    put(user / "ignored everywhere", "*.private\n")


def _included(user: Path) -> None:
    put(user / ".gitconfig", "[include]\n\tpath = more/config\n")
    put(user / "more/config", "[core]\n\texcludesFile = ~/ignored\n")
    put(user / "ignored", "*.private\n")


def _on_condition(user: Path) -> None:
    put(user / ".gitconfig", '[includeIf "gitdir:**/project/"]\n\tpath = more/config\n')
    put(user / "more/config", "[core]\n\texcludesFile = ~/ignored\n")
    put(user / "ignored", "*.private\n")


@pytest.mark.parametrize("lay", [_usual_place, _xdg, _named, _included, _on_condition])
@pytest.mark.parametrize("own", [False, True], ids=["", "the repository names one too"])
def test_a_globally_ignored_file_is_never_sent(
    root: Path, user: Path, monkeypatch: pytest.MonkeyPatch, own: bool, lay: Callable[[Path], None]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "")
    lay(user)
    put(root / "keep.private")
    put(root / "notes/of.mine")
    if own:
        git(root, "config", "core.excludesFile", "~/of the repository")
        put(user / "of the repository", "*.mine\n")
    names = look_at(root).names
    assert "keep.private" not in names
    assert ("notes/of.mine" in names) is not own


def test_a_configuration_that_git_cannot_read_is_told(root: Path, user: Path) -> None:
    put(user / ".gitconfig", "[core\n")
    with pytest.raises(DataError, match="cannot read your own configuration"):
        look_at(root)


# -- refusals are not "no git" --------------------------------------------------------------------


def test_a_repository_of_another_user_is_refused_until_it_is_trusted(
    root: Path, user: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapped(tmp_path / "bin", "export GIT_TEST_ASSUME_DIFFERENT_OWNER=1")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    put(root / ".gitignore", "private.txt\n")
    put(root / "private.txt")
    with pytest.raises(DataError, match="belongs to another user") as refused:
        look_at(root)
    step = f"git config --global --add safe.directory {root}"
    assert refused.value.next_step == step
    subprocess.run(step.split(), check=True)
    assert look_at(root).names == (".gitignore", "notes/a.txt", "pkg/deep/run.sh", "train.py")
    put(user / ".gitconfig", f"[safe]\n\tdirectory = {root}\n\tdirectory =\n")  # the last resets
    with pytest.raises(DataError, match="belongs to another user"):
        look_at(root)
    put(user / ".gitconfig", "[safe]\n\tdirectory = *\n")
    assert look_at(root).by_git


@pytest.mark.parametrize("by_git", [True, False])
def test_folders_that_cannot_be_read_are_named(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_git: bool
) -> None:
    put(root / "kept/locked/x.py", "1\n")
    if by_git:
        told = "warning: could not open directory 'kept/locked/': Permission denied"
        wrapped(tmp_path / "bin", f'case "$*" in *--others*) echo "{told}" >&2;; esac')
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    else:
        shutil.rmtree(root / ".git")
        opened = os.scandir

        def closed(path: str) -> object:
            if os.path.basename(path) == "locked":
                raise PermissionError(13, "Permission denied", path)
            return opened(path)

        monkeypatch.setattr(os, "scandir", closed)
    tree = look_at(root)
    assert tree.by_git == by_git
    assert tree.unread == ("kept/locked",)
    assert "  ! not sent, cannot be read: kept/locked" in tree_lines(tree)
    assert look_at(root, ["kept"]).unread == ()


@pytest.mark.parametrize("name", ["HEAD", "config"])
def test_a_damaged_repository_is_told_and_not_walked(root: Path, name: str) -> None:
    put(root / ".gitignore", "private.txt\n")
    put(root / "private.txt")
    put(root / ".git" / name, "[core\n")
    with pytest.raises(DataError, match="ignore rules are not known"):
        look_at(root)
    if name == "HEAD":
        shutil.rmtree(root / ".git")
        put(root / ".git", "gitdir: /no/such/folder\n")
        with pytest.raises(DataError, match="ignore rules are not known"):
            look_at(root)


def test_without_git_or_with_an_empty_folder_of_its_name_all_is_walked(
    root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(tmp_path))
        assert not look_at(root).by_git
    shutil.rmtree(root / ".git")
    (root / ".git").mkdir()
    assert look_at(root).names == ("notes/a.txt", "pkg/deep/run.sh", "train.py")


# -- comparison with the commit -------------------------------------------------------------------


def _lfs(root: Path) -> None:
    """What git-lfs leaves: a pointer in the repository, the content in the folder."""
    content = b"weights" * 1000
    pointer = (
        "version https://git-lfs.github.com/spec/v1\n"
        f"oid sha256:{hashlib.sha256(content).hexdigest()}\nsize {len(content)}\n"
    )
    put(root / "model.bin", pointer)
    commit(root)
    (root / "model.bin").write_bytes(content)


def _crlf(root: Path) -> None:
    put(root / ".gitattributes", "*.txt text eol=crlf\n")
    commit(root)
    (root / "notes/a.txt").unlink()
    git(root, "checkout", "--", "notes/a.txt")
    assert (root / "notes/a.txt").read_bytes() == b"a\r\n"


def _sparse(root: Path) -> None:
    git(root, "update-index", "--skip-worktree", "notes/a.txt")
    (root / "notes/a.txt").unlink()


def _assumed(root: Path) -> None:
    git(root, "update-index", "--assume-unchanged", "train.py")
    put(root / "train.py", "print(2)\n")


def _linked(root: Path) -> None:
    (root / "link").symlink_to("train.py")
    commit(root)


def _relinked(root: Path) -> None:
    _linked(root)
    (root / "link").unlink()
    (root / "link").symlink_to("notes")


def _file_to_link(root: Path) -> None:
    (root / "train.py").unlink()
    (root / "train.py").symlink_to("notes/a.txt")


def _conflict(root: Path) -> None:
    git(root, "checkout", "-q", "-b", "other")
    put(root / "train.py", "print(2)\n")
    commit(root)
    git(root, "checkout", "-q", "main")
    put(root / "train.py", "print(3)\n")
    commit(root)
    with pytest.raises(subprocess.CalledProcessError):
        git(root, "merge", "-q", "other")


def _sha256(root: Path) -> None:
    shutil.rmtree(root / ".git")
    git(root, "init", "-q", "--object-format=sha256")
    commit(root)


def _names_that_sort_oddly(root: Path) -> None:
    for name in ("a/x", "a.b", "a-b", "a0", "é/ü", "a b/c d"):
        put(root / name)
    commit(root)


CHANGES: dict[str, tuple[Callable[[Path], object], bool]] = {
    "nothing": (lambda root: None, False),
    "a touched file": (lambda root: os.utime(root / "train.py", (1, 1)), False),
    "an ignored file": (
        lambda root: [put(root / ".git/info/exclude", "log\n"), put(root / "log")], False,
    ),
    "a changed file": (lambda root: put(root / "train.py", "print(2)\n"), True),
    "a file of the same length": (lambda root: put(root / "train.py", "print(7)\n"), True),
    "an executable": (lambda root: (root / "train.py").chmod(0o755), True),
    "a deleted file": (lambda root: (root / "notes/a.txt").unlink(), True),
    "a new file": (lambda root: put(root / "new.py"), True),
    "a staged change": (
        lambda root: [put(root / "train.py", "2"), git(root, "add", "."),
                      put(root / "train.py", "print(1)\n")], True,
    ),
    "a staged deletion": (lambda root: git(root, "rm", "-q", "--cached", "notes/a.txt"), True),
    "an intent to add": (lambda root: [put(root / "n", ""), git(root, "add", "-N", "n")], True),
    "a conflict": (_conflict, True),
    "a link": (_linked, False),
    "a changed link": (_relinked, True),
    "a file that became a link": (_file_to_link, True),
    "line ends of Windows": (_crlf, False),
    "Git LFS": (_lfs, False),
    "a sparse checkout": (_sparse, False),
    "a change that git was told to overlook": (_assumed, True),
    "a repository of SHA-256": (_sha256, False),
    "names that sort oddly": (_names_that_sort_oddly, False),
}  # fmt: skip
#: Git says otherwise there: without a filter of its own, or as it was told.
GIT_ERRS = ("Git LFS", "a change that git was told to overlook")


@pytest.mark.parametrize("name", CHANGES)
def test_a_tree_differs_from_its_commit_as_git_says(root: Path, name: str) -> None:
    lay, differs = CHANGES[name]
    lay(root)
    assert differs_from_commit(look_at(root)) is differs
    if name not in GIT_ERRS:
        assert bool(git(root, "status", "--porcelain")) is differs


def test_a_file_that_is_not_sent_is_not_compared(root: Path) -> None:
    put(root / ".trmcloudignore", "notes/\n")
    commit(root)
    put(root / "notes/a.txt", "changed")
    assert not differs_from_commit(look_at(root))
    assert not differs_from_commit(look_at(root, ["pkg"]))
    assert not differs_from_commit(look_at(root / "pkg"))
    put(root / "pkg/deep/run.sh", "changed")
    assert differs_from_commit(look_at(root / "pkg"))
    assert not differs_from_commit(look_at(root, ["pkg"]))


def test_without_a_commit_nothing_differs(tmp_path: Path) -> None:
    put(tmp_path / "fresh/train.py")
    git(tmp_path / "fresh", "init", "-q")
    tree = look_at(tmp_path / "fresh")
    assert (tree.by_git, tree.git_commit, differs_from_commit(tree)) == (True, "", False)


# -- interpreters ---------------------------------------------------------------------------------


def test_a_python_of_the_tree_is_read_and_not_run(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(root / ".venv/bin/python", f"#!/bin/sh\ntouch {tmp_path / 'ran'}\necho 3.9\n", 0o755)
    put(root / ".venv/pyvenv.cfg", "home = /usr/bin\nversion_info = 3.12.7\n")
    monkeypatch.chdir(root)
    monkeypatch.setenv("PATH", f"{root / '.venv/bin'}:/usr/bin:/bin")
    assert _python_here(root) == "3.12"
    (root / ".venv/pyvenv.cfg").unlink()
    assert _python_here(root) == ""
    assert not (tmp_path / "ran").exists()
    put(tmp_path / "bin/python", '#!/bin/sh\n[ -z "$RUNPOD_API_KEY" ] && echo 3.13\n', 0o755)
    monkeypatch.setenv("PATH", f".:{tmp_path / 'bin'}")
    monkeypatch.setenv("RUNPOD_API_KEY", "canary")
    put(root / "python", "#!/bin/sh\necho 3.8\n", 0o755)
    assert _python_here(root) == "3.13"


def test_a_python_that_a_trials_command_reports_is_run_only_if_the_user_typed_it(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command itself writes that report: it may name any file."""
    forged = str(root / "python")
    put(root / "python", f"#!/bin/sh\nenv >{tmp_path / 'env'}\n", 0o755)
    monkeypatch.setenv("RUNPOD_API_KEY", "canary")
    observed: Any = SimpleNamespace(modules=("torch",), pythons=(forged,))
    assert _packages(observed, (), root, "python3") is None
    assert not (tmp_path / "env").exists()
    assert _packages(observed, (), root, forged) is None, "typed, and no Python"
    assert "PATH=" in (tmp_path / "env").read_text()
    assert "canary" not in (tmp_path / "env").read_text()


def test_a_git_folder_behind_a_link_or_a_file_is_judged_where_it_lies(
    root: Path, tmp_path: Path
) -> None:
    real, git = root / "kept", root / ".git"
    git.rename(real)
    git.symlink_to("kept")
    assert look_at(root).by_git
    git.unlink()
    put(git, "gitdir: kept\n")
    assert look_at(root).by_git
    with open(real / "config", "a") as file:
        file.write("[include]\n\tpath = /etc/hostname\n")
    with pytest.raises(DataError, match="names a file of another place"):
        look_at(root)
    git.unlink()
    git.symlink_to(real)
    with pytest.raises(DataError, match="names a file of another place"):
        look_at(root)
    git.unlink()
    real.rename(tmp_path / "elsewhere")
    git.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="it is a link to another place"):
        look_at(root)


_ELSEWHERE = "[core]\n\texcludesFile = %s\n"


@pytest.mark.parametrize("name", ["config", "config.worktree"])
def test_a_submodule_names_no_file_of_another_place(root: Path, tmp_path: Path, name: str) -> None:
    """A submodule's git folder is in the clone around it, outside the folder that is sent."""
    git(root, "submodule", "--quiet", "add", str(root), "lib")
    modules = root / ".git/modules/lib"
    put(modules / name, (modules / "config").read_text() + _ELSEWHERE % "../notes/a.txt")
    assert look_at(root / "lib").by_git, "a file of the clone"
    put(modules / name, (modules / "config").read_text() + _ELSEWHERE % (tmp_path / "token.txt"))
    with pytest.raises(DataError, match="names a file of another place"):
        look_at(root / "lib")


def test_a_linked_folder_and_a_clone_of_shared_settings_are_judged_by_both_configurations(
    root: Path, tmp_path: Path
) -> None:
    git(root, "worktree", "add", "-q", str(tmp_path / "second"))
    with open(root / ".git/config", "a") as file:
        file.write(_ELSEWHERE % "notes/a.txt")
    assert look_at(tmp_path / "second").by_git, "a file of the clone that it is linked to"
    with open(root / ".git/config", "a") as file:
        file.write(_ELSEWHERE % "/etc/hostname")
    with pytest.raises(DataError, match="names a file of another place"):
        look_at(tmp_path / "second")


def test_a_common_folder_is_judged_where_it_lies(root: Path) -> None:
    shared = root / "shared"
    shutil.copytree(root / ".git", shared)
    put(root / ".git/commondir", "../shared\n")
    assert look_at(root).by_git
    with open(shared / "config", "a") as file:
        file.write(_ELSEWHERE % "/etc/hostname")
    with pytest.raises(DataError, match="names a file of another place"):
        look_at(root)


def test_the_name_in_a_git_file_is_read_as_git_reads_it(root: Path) -> None:
    real = root / " kept"
    (root / ".git").rename(real)
    with open(real / "config", "a") as file:
        file.write(_ELSEWHERE % "/etc/hostname")
    put(root / ".git", "gitdir:  kept\n\n")
    with pytest.raises(DataError, match="names a file of another place"):
        look_at(root)
    put(root / ".git", "gitdir: \0kept\n")
    with pytest.raises(DataError, match="names no folder"):
        look_at(root)


def test_a_git_file_behind_a_link_that_leads_elsewhere_is_not_read(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Path] = []
    monkeypatch.setattr(
        "trmcloud.operations.sending.git_tree.open_regular", lambda path: opened.append(path)
    )
    (root / ".git").rename(root / "kept")
    (tmp_path / "token.txt").write_text("hf_outside")
    (root / ".git").symlink_to(tmp_path / "token.txt")
    with pytest.raises(DataError, match="it is a link to another place"):
        look_at(root)
    assert opened == []


def _slow_rules(root: Path) -> None:
    put(root / ".gitignore", "**/a*/" * 9 + "**/b\n")
    put(root / ("a/" * 60 + "a"))


def test_a_list_that_takes_git_too_long_is_asked_for_once(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rule of many stars; the check of the script asks first, what sends the files after it."""
    _slow_rules(root)
    monkeypatch.setattr("trmcloud.operations.sending.git_tree._MOST_S", 0.5)
    with pytest.raises(GitStopped, match="did not end in time"):
        command_of(CommandRequest(words=("python", "train.py")), "", root)


def test_a_list_that_costs_git_too_much_is_stopped(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _slow_rules(root)
    monkeypatch.setattr("trmcloud.operations.sending.git_tree._MOST_CPU_S", 1)
    with pytest.raises(GitStopped, match="more than 1 s of CPU time"):
        look_at(root)
    assert not list(root.glob("core*"))


def test_a_repository_that_cannot_be_looked_through_is_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trmcloud.operations.sending.git_tree._MOST_FILES", 3)
    with pytest.raises(DataError, match="more than 3 files"):
        look_at(root)


@pytest.mark.parametrize("name", ["HEAD", "info/exclude", "refs/heads/other", "objects/ab/cd"])
def test_git_waits_for_no_pipe_in_the_repository(root: Path, name: str) -> None:
    made = root / ".git" / name
    made.unlink(missing_ok=True)
    made.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(made)
    began = time.monotonic()
    with pytest.raises(DataError, match="git would wait"):
        look_at(root)
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    "name",
    [
        "packed-refs", "index", "info/exclude", "refs/heads/other", "objects/ab/cd",
        "objects/pack/pack-1.idx", "reftable/tables.list",
    ],
)  # fmt: skip
def test_a_link_in_the_repository_that_leads_elsewhere_is_refused(
    root: Path, tmp_path: Path, name: str
) -> None:
    (tmp_path / "token.txt").write_text("hf_outside")
    made = root / ".git" / name
    made.unlink(missing_ok=True)
    made.parent.mkdir(parents=True, exist_ok=True)
    made.symlink_to(tmp_path / "token.txt")
    with pytest.raises(DataError, match="git would read files outside the repository") as refused:
        look_at(root)
    assert "hf_outside" not in str(refused.value)


@pytest.mark.parametrize(
    ("config", "is_refused"),
    [
        ("[include]\n\tpath = ../shared.config\n", False),
        ("[include]\n\tpath = ~/.netrc\n", True),
        ("[core]\n[ include ]path=/etc/hostname\n", True),
        ('[includeIf "gitdir:/"]\n\tpath = "/etc/"hostname\n', True),
        ("[include]\n\tpath = a/\\\n../../../etc/hostname\n", True),
        ("[include]\n\tpath = ../../other\n", True),
        ("[core]\n\texcludesFile = /etc/hostname\n", True),
        ("[core]\n\texcludesFile = notes/a.txt\n", False),
        ("[core]\n\texcludesFile = notes/../../other\n", True),
        ("[include]\n\tpath = ../pipe\n", True),
        ("[include]\n\tpath = ../includes.config\n", True),
        ('[remote "a"]\n\tpath = /etc/hostname\n', False),
    ],
)
def test_a_repository_names_no_file_of_another_place(
    root: Path, config: str, is_refused: bool
) -> None:
    put(root / "shared.config", "[core]\n\tignoreCase = false\n")
    put(root / "includes.config", "[include]\n\tpath = shared.config\n")
    os.mkfifo(root / "pipe")
    with open(root / ".git" / "config", "a") as file:
        file.write(config)
    if is_refused:
        with pytest.raises(DataError, match="names a file of another place"):
            look_at(root)
    else:
        assert look_at(root).by_git
