"""A checkpoint to and from S3: ours against rclone, aws-cli and s5cmd, side by side on one server.

The server is moto's, a process of its own on this machine, so that all are held to the same store;
of each the best of its turns counts. Ours also checks MD5 part by part and SHA-256 over the whole,
both ways, which of the others none does.

``TRMCLOUD_BENCH_SHORT=1`` makes the file smaller, for a quick look.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench.copies import speed_row, timed, write_random
from bench.row import Row

_BUCKET, _NAME = "bench", "weights.safetensors"
_SHORT = bool(os.environ.get("TRMCLOUD_BENCH_SHORT"))
_BYTES = (1 << 28) if _SHORT else (1 << 30)
_TURNS = 2
_RIVALS = ("rclone", "aws-cli", "s5cmd")


def run() -> list[Row]:
    missing = [name for name in ("boto3", "moto") if importlib.util.find_spec(name) is None]
    if missing:
        print(f"  left out: {', '.join(missing)} is not installed")
        return []
    from tests.standins.s3 import running

    shm = Path("/dev/shm")
    roomy = shm.is_dir() and shutil.disk_usage(shm).free > 6 * _BYTES
    with (
        tempfile.TemporaryDirectory(dir=shm if roomy else None) as folder,
        running(Path(folder)) as server,
    ):
        server.client.create_bucket(Bucket=_BUCKET)
        before = dict(os.environ)
        os.environ.update(server.environment)
        try:
            return _compare(Path(folder), server.url)
        finally:
            os.environ.clear()
            os.environ.update(before)


def _compare(folder: Path, url: str) -> list[Row]:
    from trmcloud.adapters.s3.bucket import S3Bucket
    from trmcloud.adapters.s3.fetching import fetch_file
    from trmcloud.adapters.s3.sending import put_file
    from trmcloud.adapters.s3.spans import Meter, Source
    from trmcloud.core.contract.bucket_layout import Place

    source, target = folder / "source" / _NAME, folder / "target"
    digest = write_random(source, _BYTES)
    client = S3Bucket(Place(_BUCKET)).client

    def silent(done: int, whole: int) -> None:
        pass

    def key(name: str) -> str:
        return f"{name}/{_NAME}"

    def our_up() -> None:
        put_file(client, source, key("ours"), digest, Meter(silent, _BYTES))

    def our_down() -> None:
        pieces = [Source(key("ours"), 0, _BYTES)]
        fetch_file(client, pieces, target / _NAME, digest, Meter(silent, _BYTES))

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
            target.mkdir()
            downs[name] = min(downs[name], timed(down))
            shutil.rmtree(target)
            client.s3.delete_object(Bucket=_BUCKET, Key=key(name))
    return [
        speed_row(f"{_BYTES >> 20} MiB {way} S3", _BYTES, best, _RIVALS)
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
