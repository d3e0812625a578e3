"""Bringing a checkpoint home: ours against rsync, scp and rclone, side by side over one ``sshd``.

Every rival copies the same 1 GiB from the same server to the same disk, in turns, so that whatever
else the machine does falls on all alike; of each the best of its turns counts. Ours also hashes
what it brings, checks it, and makes it durable, which none of the others does.

``TRMCLOUD_BENCH_SHORT=1`` makes both files smaller, for a quick look.
"""

from __future__ import annotations

import hashlib
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.copies import speed_row, timed, write_random
from bench.row import Row
from tests.standins.sshd import Sshd, find_sshd, running

_POD = "trmc-0123abcd-r1f3a9c-g1-1790000000"
_NAME = "weights.safetensors"
_SHORT = bool(os.environ.get("TRMCLOUD_BENCH_SHORT"))
_SPEED_BYTES = (1 << 28) if _SHORT else (1 << 30)
_MEMORY_BYTES = (1 << 30) if _SHORT else (10 << 30)
_TURNS = 3
_MEBIBYTE = 1 << 20


def run() -> list[Row]:
    if find_sshd() is None:
        print("  left out: there is no sshd on this machine")
        return []
    with tempfile.TemporaryDirectory(dir=_roomy(2 * _SPEED_BYTES + (1 << 30))) as folder:
        rows = [_speed(Path(folder))]
    with tempfile.TemporaryDirectory(dir=_roomy(_MEMORY_BYTES + (1 << 30))) as folder:
        rows.append(_memory(Path(folder)))
    return rows


def _roomy(needed: int) -> str | None:
    """Memory where there is plenty of it, so that the link is measured and not the disk."""
    shm = Path("/dev/shm")
    if not shm.is_dir() or not os.access(shm, os.W_OK) or _available() < 3 * needed:
        return None
    return str(shm) if shutil.disk_usage(shm).free > needed else None


def _available() -> int:
    """Bytes of memory that could be had."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def _speed(folder: Path) -> Row:
    from trmcloud.adapters.ssh.connection import SshConnection, control_dir
    from trmcloud.adapters.ssh.keys import KeyStore
    from trmcloud.adapters.ssh.pull import pull
    from trmcloud.core.contract.manifest import CheckpointFile

    keys = KeyStore(folder)
    made = keys.for_pod(_POD)
    source = folder / "source" / _NAME
    digest = write_random(source, _SPEED_BYTES)
    file = CheckpointFile(_NAME, "weights", _SPEED_BYTES, digest)
    target = folder / "target"
    with running(Sshd(folder / "sshd", made.host_private, made.user_public)) as server:
        options = [
            *("-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes", "-o", "IdentitiesOnly=yes"),
            *("-o", f"UserKnownHostsFile={keys.known_hosts(_POD)}", "-o", f"HostKeyAlias={_POD}"),
            *("-i", str(keys.identity())),
        ]
        there = f"{server.user}@127.0.0.1:{source}"

        def ours() -> None:
            connection = SshConnection(
                server.address,
                identity=keys.identity(),
                known_hosts=keys.known_hosts(_POD),
                alias=_POD,
                control_dir=control_dir(folder),
                user=server.user,
            )
            pull(connection, str(source.parent), [file], target, lambda done, whole: None)
            connection.close()

        def rsync() -> None:
            shell = " ".join(["ssh", *options, "-p", str(server.port)])
            _must(["rsync", "-e", shell, there, f"{target}/"])

        def scp() -> None:
            _must(["scp", "-q", *options, "-P", str(server.port), there, f"{target}/"])

        def rclone() -> None:
            remote = (
                f":sftp,host=127.0.0.1,port={server.port},user={server.user},"
                f"key_file={keys.identity()}:{source}"
            )
            _must(["rclone", "--config", "/dev/null", "copyto", remote, str(target / _NAME)])

        rivals = {"rsync": rsync, "scp": scp, "rclone": rclone}
        ways: dict[str, Callable[[], None]] = {"ours": ours}
        ways |= {name: way for name, way in rivals.items() if shutil.which(name)}
        best = {name: float("inf") for name in ways}
        for turn in range(_TURNS):
            for name in list(ways) if turn % 2 else reversed(list(ways)):
                target.mkdir()
                best[name] = min(best[name], timed(ways[name]))
                shutil.rmtree(target)
    return speed_row(f"pull {_SPEED_BYTES >> 20} MiB", _SPEED_BYTES, best, list(rivals))


def _memory(folder: Path) -> Row:
    """The most memory the pulling process ever held, as the kernel counted it."""
    from trmcloud.adapters.ssh.keys import KeyStore

    made = KeyStore(folder).for_pod(_POD)
    source = folder / "source" / _NAME
    source.parent.mkdir()
    # With holes where data would be: what travels is the same, and only one disk's worth is used.
    source.touch()
    os.truncate(source, _MEMORY_BYTES)
    with running(Sshd(folder / "sshd", made.host_private, made.user_public)) as server:
        begun = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "bench.pull", str(folder), str(server.port), server.user],
            stdout=subprocess.PIPE,
            check=True,
        )
        took = time.perf_counter() - begun
    held = int(done.stdout) / _MEBIBYTE
    name = f"memory while pulling {_MEMORY_BYTES >> 30} GiB"
    speed = f"{_MEMORY_BYTES / took / 1e6:.0f} MB/s, verified; ssh's own processes apart"
    return Row(name, held, 200.0, "lower", "MiB", speed)


def _pull_alone(folder: Path, port: int, user: str) -> int:
    """Pull the file of ``_memory`` in this process; the most bytes it held."""
    from trmcloud.adapters.ssh.connection import SshConnection, control_dir
    from trmcloud.adapters.ssh.keys import KeyStore
    from trmcloud.adapters.ssh.pull import pull
    from trmcloud.core.contract.manifest import CheckpointFile

    keys = KeyStore(folder)
    zeros = hashlib.sha256()
    for _ in range(_MEMORY_BYTES // _MEBIBYTE):
        zeros.update(bytes(_MEBIBYTE))
    connection = SshConnection(
        ("127.0.0.1", port),
        identity=keys.identity(),
        known_hosts=keys.known_hosts(_POD),
        alias=_POD,
        control_dir=control_dir(folder),
        user=user,
    )
    file = CheckpointFile(_NAME, "weights", _MEMORY_BYTES, zeros.hexdigest())
    pull(connection, str(folder / "source"), [file], folder / "target", lambda done, whole: None)
    connection.close()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _must(command: list[str]) -> None:
    subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)


if __name__ == "__main__":
    print(_pull_alone(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
