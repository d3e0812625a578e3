"""A checkpoint to and from S3: ours against rclone, aws-cli and s5cmd, side by side on one server.

The server is ``rclone serve s3`` where rclone is new enough to have it (1.65), else moto's: a
process of its own on this machine, so that all are held to the same store. moto reads an object
anew for each range of it, which no store does: from it a large file is slow to come. Of each the
best of its turns counts. Ours also sends MD5 part by part and checks SHA-256 over the whole, both
ways, which of the others none does.

``TRMCLOUD_BENCH_SHORT=1`` leaves out the largest file, for a quick look.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bench.copies import speed_row, timed, write_random
from bench.row import Row

if TYPE_CHECKING:
    from tests.standins.s3 import S3

_BUCKET, _NAME = "bench", "weights.safetensors"
_SHORT = bool(os.environ.get("TRMCLOUD_BENCH_SHORT"))
_SIZES = (1 << 26, 1 << 28) if _SHORT else (1 << 26, 1 << 28, 1 << 30)
_TURNS = 3
_KEY, _SECRET = "bench-key", "bench-secret"
_RIVALS = ("rclone", "aws-cli", "s5cmd")


def run() -> Iterator[Row]:
    missing = [name for name in ("boto3", "moto") if importlib.util.find_spec(name) is None]
    if missing:
        print(f"  left out: {', '.join(missing)} is not installed")
        return
    from tests.standins.s3 import running

    shm = Path("/dev/shm")
    roomy = shm.is_dir() and shutil.disk_usage(shm).free > 6 * max(_SIZES)
    with tempfile.TemporaryDirectory(dir=shm if roomy else None) as folder:
        serving = _rclones(Path(folder)) if _serves() else running(Path(folder))
        with serving as server:
            server.client.create_bucket(Bucket=_BUCKET)
            before = dict(os.environ)
            os.environ.update(server.environment)
            try:
                for size in _SIZES:
                    yield from _compare(Path(folder, str(size)), server.url, size)
            finally:
                os.environ.clear()
                os.environ.update(before)


def _serves() -> bool:
    done = subprocess.run(["rclone", "serve", "s3", "--help"], capture_output=True, check=False)
    return done.returncode == 0 if shutil.which("rclone") else False


@contextlib.contextmanager
def _rclones(folder: Path) -> Iterator[S3]:
    """The store that rclone is to others: one that has nothing to do with us."""
    from botocore.exceptions import EndpointConnectionError

    from tests.standins.s3 import store_at

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["rclone", "--config", "/dev/null", "serve", "s3", "--addr", f"127.0.0.1:{port}"]
    kept = folder / "store"
    kept.mkdir()
    server = subprocess.Popen(
        [*words, "--auth-key", f"{_KEY},{_SECRET}", str(kept)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    store = store_at(f"http://127.0.0.1:{port}", _KEY, _SECRET)
    try:
        for _ in range(100):
            with contextlib.suppress(EndpointConnectionError):
                store.client.list_buckets()
                break
            time.sleep(0.1)
        yield store
    finally:
        server.terminate()
        server.wait()


def _compare(folder: Path, url: str, size: int) -> list[Row]:
    from trmcloud.adapters.s3.bucket import S3Bucket
    from trmcloud.adapters.s3.fetching import fetch_files
    from trmcloud.adapters.s3.sending import put_file
    from trmcloud.core.contract.bucket_layout import Piece, Place
    from trmcloud.core.contract.manifest import CheckpointFile

    source, target = folder / "source" / _NAME, folder / "target"
    digest = write_random(source, size)
    client = S3Bucket(Place(_BUCKET)).client

    def silent(done: int, whole: int) -> None:
        pass

    def key(name: str) -> str:
        return f"{name}/{_NAME}"

    def our_up() -> None:
        put_file(client, source, key("ours"), digest, silent)

    def our_down() -> None:
        file = CheckpointFile(_NAME, "weights", size, digest)
        pieces = {_NAME: [Piece(key("ours"), 0, size)]}
        fetch_files(client, [file], pieces, target, silent)

    rclone = [
        *("rclone", "--config", "/dev/null", "--s3-provider", "Other", "--s3-endpoint", url),
        *("--s3-env-auth", "--s3-no-check-bucket", "copyto"),
    ]
    aws = ["aws", "--endpoint-url", url, "s3", "cp", "--quiet"]
    s5cmd = ["s5cmd", "--endpoint-url", url, "cp"]
    ways: dict[str, tuple[Callable[[], None], Callable[[], None]]] = {"ours": (our_up, our_down)}
    for name, command, start in (
        ("rclone", rclone, f":s3:{_BUCKET}"),
        ("aws-cli", aws, f"s3://{_BUCKET}"),
        ("s5cmd", s5cmd, f"s3://{_BUCKET}"),
    ):
        if _works(command[0]):
            there = f"{start}/{key(name)}"
            ways[name] = (
                partial(_must, [*command, str(source), there]),
                partial(_must, [*command, there, str(target / _NAME)]),
            )
    ups, downs = dict.fromkeys(ways, float("inf")), dict.fromkeys(ways, float("inf"))
    for turn in range(_TURNS):
        for name in list(ways) if turn % 2 else reversed(list(ways)):
            up, down = ways[name]
            ups[name] = min(ups[name], timed(up))
            # rclone's store hashes an object once it is asked about: that is no part of a pull.
            client.s3.head_object(Bucket=_BUCKET, Key=key(name))
            target.mkdir()
            downs[name] = min(downs[name], timed(down))
            shutil.rmtree(target)
            client.s3.delete_object(Bucket=_BUCKET, Key=key(name))
    return [
        speed_row(f"{size >> 20} MiB {way} S3", size, best, _RIVALS)
        for way, best in (("to", ups), ("from", downs))
    ]


def _works(program: str) -> bool:
    """Whether it is installed: a name may lead to a shim without a program behind it."""
    word = "--version" if program != "s5cmd" else "version"
    try:
        done = subprocess.run([program, word], capture_output=True, timeout=30, check=False)
    except OSError:
        return False
    return done.returncode == 0


def _must(command: list[str]) -> None:
    # A bundle of certificates that is named in the environment is more than rclone can take.
    plain = {k: v for k, v in os.environ.items() if k != "AWS_CA_BUNDLE"}
    nothing = subprocess.DEVNULL
    # rclone grumbles over how this server answers the end of an upload, and finds it whole.
    subprocess.run(command, stdin=nothing, stdout=nothing, stderr=nothing, env=plain, check=True)
