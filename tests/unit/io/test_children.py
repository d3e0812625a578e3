"""Readers of foreign files: an allow-listed environment, limits, and no process that stays."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from trmcloud.io.children import ReaderStopped, find_program, reader_environment, run_reader

_STAYS = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open(sys.argv[1], "w").write(str(os.getpid()))
        time.sleep(60)
    os._exit(0)
while not (os.path.exists(sys.argv[1]) and open(sys.argv[1]).read()):
    time.sleep(0.01)
print("done")
if len(sys.argv) > 2:
    time.sleep(60)
"""


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_an_environment_is_an_allow_list_with_absolute_paths():
    source = {
        "PATH": ".:/usr/bin::bin:/bin", "RUNPOD_API_KEY": "k", "HOME": "/root", "GIT_DIR": "x",
        "https_proxy": "http://proxy:3128", "SSL_CERT_FILE": "/etc/ca.pem", "PIP_INDEX_URL": "y",
    }  # fmt: skip
    assert reader_environment(source, {"GIT_CONFIG_NOSYSTEM": "1"}) == {
        "PATH": "/usr/bin:/bin", "https_proxy": "http://proxy:3128",
        "SSL_CERT_FILE": "/etc/ca.pem", "GIT_CONFIG_NOSYSTEM": "1",
    }  # fmt: skip


def test_a_program_of_the_folder_looked_at_is_not_found(tmp_path, monkeypatch):
    (tmp_path / "git").write_text("#!/bin/sh\n")
    (tmp_path / "git").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    assert find_program("git", ".:") is None
    assert find_program("git", f".:{tmp_path}") == str(tmp_path / "git")
    assert find_program("git", str(tmp_path), outside=tmp_path) is None
    assert find_program("git", f"{tmp_path}:/usr/bin", outside=tmp_path) == "/usr/bin/git"
    assert find_program("git", str(tmp_path), outside=tmp_path / "sub") == str(tmp_path / "git")


def test_it_runs_in_an_empty_folder_without_our_variables(monkeypatch):
    monkeypatch.setenv("RUNPOD_API_KEY", "canary")
    code = "import os; print(os.listdir(), os.environ.get('RUNPOD_API_KEY'))"
    ended = run_reader([sys.executable, "-c", code], most_s=60)
    assert (ended.code, ended.out) == (0, b"[] None\n")


def test_what_is_given_is_its_input_and_both_outputs_are_returned():
    code = "import sys; sys.stderr.write('e'); print(sys.stdin.read()); sys.exit(3)"
    ended = run_reader([sys.executable, "-c", code], most_s=60, given=b"i")
    assert (ended.code, ended.out, ended.err) == (3, b"i\n", b"e")


@pytest.mark.parametrize("sleeps", [False, True])
def test_no_process_outlives_it(tmp_path, sleeps):
    note = tmp_path / "pid"
    command = [sys.executable, "-c", _STAYS, str(note), *(["x"] if sleeps else [])]
    begun = time.monotonic()
    if sleeps:
        with pytest.raises(ReaderStopped, match="in time"):
            run_reader(command, most_s=3)
    else:
        assert run_reader(command, most_s=50).out == b"done\n"
    assert time.monotonic() - begun < 40
    assert not _is_alive(int(note.read_text()))


def test_endless_output_is_stopped():
    with pytest.raises(ReaderStopped, match="more than"):
        run_reader(["/bin/sh", "-c", "while :; do echo y; done"], most_s=60, most_bytes=1 << 20)


def test_a_relative_program_is_refused_and_a_missing_one_cannot_be_started():
    with pytest.raises(ValueError, match="absolute"):
        run_reader(["git"], most_s=1)
    with pytest.raises(OSError, match="No such file"):
        run_reader([os.path.join(os.sep, "no", "such", "program")], most_s=1)
