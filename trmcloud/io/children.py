"""Programs that read another party's files (git, uv, sky), started apart from the user's keys.

A repository, a requirements file or a SkyPilot configuration may name programs and addresses. So
such a program gets an environment by an allow-list, a folder that the caller states, limits of
time and output, and no process that it started outlives it.
"""

from __future__ import annotations

import os
import resource
import secrets
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trmcloud.io.files import is_below

#: Variables that a reader gets: how to find programs and the network, and the language. No
#: configuration of another program is among them, and no name that could hold a key.
PASSED_ON = (
    "PATH", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "LC_MESSAGES", "TZ", "TMPDIR",
    "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY",
    "http_proxy", "https_proxy", "all_proxy", "no_proxy",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
)  # fmt: skip
_MARK = "TRMCLOUD_READER"
"""A variable with a random value: processes that left the session are found by it."""
_CHUNK_BYTES = 1 << 16


@dataclass(frozen=True)
class Ended:
    """A reader's exit status (negative: the signal) and what it wrote, as bytes."""

    code: int
    out: bytes
    err: bytes


class ReaderStopped(Exception):
    """It exceeded its limit of time or output, and was ended with all that it had started."""


def find_program(name: str, path: str | None = None, outside: Path | None = None) -> str | None:
    """Return the absolute path of a program on ``path`` (default: PATH); None: there is none.

    Relative entries of the path are skipped, and those below ``outside``, the folder looked at: its
    environment may be active (``.venv/bin``), and hold a program of that name.
    """
    entries = _absolute_entries(os.environ.get("PATH") if path is None else path)
    if outside is not None:
        folder = os.path.realpath(outside)
        kept = [e for e in entries.split(os.pathsep) if not is_below(os.path.realpath(e), folder)]
        entries = os.pathsep.join(kept)
    return shutil.which(name, path=entries)


def reader_environment(
    source: Mapping[str, str] | None = None, also: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the allowed variables of ``source`` (default: this process), and ``also`` by name."""
    source = os.environ if source is None else source
    kept = {name: source[name] for name in PASSED_ON if name in source}
    kept["PATH"] = _absolute_entries(kept.get("PATH"))
    return {**kept, **(also or {})}


def run_reader(
    command: Sequence[str],
    *,
    most_s: float,
    most_cpu_s: int | None = None,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    given: bytes = b"",
    most_bytes: int = 64 << 20,
) -> Ended:
    """Run ``command``, whose first word is an absolute path, and return what it answered.

    Args:
        most_s: the time limit in seconds.
        most_cpu_s: limit of its CPU time in seconds, and of each process that it starts; Linux
            alone keeps it.
        folder: where it runs; a new empty folder, removed afterwards, if None.
        environment: by default ``reader_environment()``.
        given: bytes for its standard input.
        most_bytes: limit of each of its two outputs.

    Raises:
        ReaderStopped: a limit was exceeded.
        OSError: it could not be started.
    """
    if not os.path.isabs(command[0]):
        raise ValueError(f"{command[0]!r} is no absolute path")
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="trmcloud-") as empty:
            return run_reader(
                command, most_s=most_s, most_cpu_s=most_cpu_s, folder=Path(empty),
                environment=environment, given=given, most_bytes=most_bytes,
            )  # fmt: skip
    mark = secrets.token_hex(16)
    known = dict(reader_environment() if environment is None else environment)
    with tempfile.TemporaryFile() as written:
        written.write(given)
        written.seek(0)
        child = subprocess.Popen(
            list(command), stdin=written, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            cwd=folder, env={**known, _MARK: mark}, start_new_session=True,
        )  # fmt: skip
    try:
        if most_cpu_s is not None:
            _limit_cpu(child.pid, most_cpu_s)
        out, err = _read_both(child, time.monotonic() + most_s, most_bytes)
    finally:
        _end_all(child, mark)
    if child.returncode == -signal.SIGXCPU:
        raise ReaderStopped(f"it used more than {most_cpu_s} s of CPU time")
    return Ended(child.returncode, out, err)


def _limit_cpu(pid: int, most_s: int) -> None:
    if sys.platform != "linux":
        return
    with suppress(ProcessLookupError):
        resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))  # no dump where it runs
        resource.prlimit(pid, resource.RLIMIT_CPU, (most_s, most_s + 1))


def _read_both(child: subprocess.Popen[bytes], deadline: float, most: int) -> tuple[bytes, bytes]:
    """Read both outputs until the child ends.

    A grandchild that holds them open does not count: the child's own end, and what was in the
    pipes then, does.
    """
    assert child.stdout is not None
    assert child.stderr is not None
    parts = {child.stdout.fileno(): bytearray(), child.stderr.fileno(): bytearray()}
    with selectors.DefaultSelector() as selector:
        for handle in parts:
            os.set_blocking(handle, False)
            selector.register(handle, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(timeout=0.05)
            for key, _ in ready:
                if data := os.read(key.fd, _CHUNK_BYTES):
                    parts[key.fd] += data
                else:
                    selector.unregister(key.fd)
                if len(parts[key.fd]) > most:
                    raise ReaderStopped(f"it wrote more than {most} bytes")
            if not ready and child.poll() is not None:
                break
            if time.monotonic() > deadline:
                raise ReaderStopped("it did not end in time")
    with suppress(subprocess.TimeoutExpired):
        child.wait(max(0.0, deadline - time.monotonic()))
    if child.returncode is None:
        raise ReaderStopped("it did not end in time")
    return bytes(parts[child.stdout.fileno()]), bytes(parts[child.stderr.fileno()])


def _end_all(child: subprocess.Popen[bytes], mark: str) -> None:
    """Kill the child's process group and every process that bears its mark, until none is left."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    for pipe in (child.stdout, child.stderr):
        if pipe is not None:
            pipe.close()
    wanted = f"{_MARK}={mark}".encode()
    for _ in range(20):  # one that forks between two looks is found at the next
        left = [pid for pid in _own_processes() if wanted in _environment_of(pid)]
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not left:
            return
        time.sleep(0.01)


def _own_processes() -> Iterable[int]:
    with suppress(OSError), os.scandir("/proc") as entries:  # no such folder but on Linux
        yield from [int(entry.name) for entry in entries if entry.name.isdigit()]


def _environment_of(pid: int) -> list[bytes]:
    with suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
        return file.read().split(b"\0")
    return []


def _absolute_entries(path: str | None) -> str:
    entries = (os.defpath if path is None else path).split(os.pathsep)
    return os.pathsep.join(entry for entry in entries if os.path.isabs(entry))
