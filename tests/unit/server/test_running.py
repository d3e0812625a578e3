"""A person's command on the server: what it is started with, and which files it may be sent."""

from __future__ import annotations

import asyncio
import io
import os
import tarfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from trmcloud.core.errors import DataError
from trmcloud.server.running import CommandRunner

SPEAKS = b"raise SystemExit('a module that was sent is run')\n"


def tree(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


async def parts(content: bytes) -> AsyncIterator[bytes]:
    yield content


def ran(runner: CommandRunner, files: Mapping[str, bytes], *words: str) -> list[dict[str, Any]]:
    async def run() -> list[dict[str, Any]]:
        key = await runner.take_upload("bob", parts(tree(files)))
        return [each async for each in runner.run("bob", words, {}, upload=key)]

    return asyncio.run(run())


@pytest.fixture
def runner(tmp_path: Path) -> CommandRunner:
    clock = iter(range(1_000_000))
    environment = {**os.environ, "TRMCLOUD_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)}
    return CommandRunner(tmp_path / "commands", environment, lambda: float(next(clock)))


def test_no_module_that_a_client_sent_is_imported(runner: CommandRunner) -> None:
    """It would run as the server's user, beside the provider's keys."""
    names = ("trmcloud/__init__.py", "typer.py", "json.py", "sitecustomize.py", "pip.py")
    *said, end = ran(runner, dict.fromkeys(names, SPEAKS), "--version")
    assert end["exit_code"] == 0, said
    assert "trmcloud" in "".join(each.get("out", "") for each in said)


@pytest.mark.parametrize("name", [".git/config", "sub/.GIT/hooks/post-index-change", "a/.git"])
def test_a_repositorys_own_files_are_refused(runner: CommandRunner, name: str) -> None:
    """git runs programs that a repository's configuration names."""
    with pytest.raises(DataError, match="git repository"):
        ran(runner, {name: b"[core]\n\tfsmonitor = touch pwned\n"}, "--version")


def test_a_bare_repository_in_the_files_is_not_read(runner: CommandRunner, tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    lines = ("repositoryformatversion = 0", "bare = false", "worktree = .")
    config = "\n\t".join(("[core]", *lines, f"fsmonitor = touch {touched}; false", ""))
    bare = {"HEAD": b"ref: refs/heads/main\n", "config": config.encode(), "train.py": b"pass\n"}
    bare |= {"objects/info/x": b"", "refs/heads/x": b""}
    run = ("run", "local", "--rate", "1", "--budget", "1", "--dry-run", "--", "python3", "train.py")
    *said, end = ran(runner, bare, *run)
    assert end["exit_code"] == 0, said
    assert not touched.exists()


def test_a_sealed_secret_is_removed_from_output_whatever_it_is_called(tmp_path: Path) -> None:
    clock = iter(range(1_000_000))
    value = "no form that tells it"
    environment = {**os.environ, "TRMCLOUD_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)}
    environment |= {"HARMLESS": value}
    runner = CommandRunner(tmp_path / "commands", environment, lambda: float(next(clock)), [value])
    *said, end = ran(runner, {}, "status", value)
    assert end["exit_code"] == 3
    told = "".join(each.get("err", "") for each in said)
    assert value not in told
    assert "[removed: a secret of the server]" in told
