"""Named data on rented machines with a bucket: the tokens that one made are there for the next."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest

from tests.e2e.mission import world
from tests.e2e.runpod_user import why_not
from tests.standins.data_host import DataHost
from tests.standins.s3 import BUCKET, S3, s3
from trmcloud.core.outcome import Outcome

__all__ = ["s3"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(why_not()), reason=f"pods that answer over SSH: {why_not()}"),
]

LAUNCH = (
    *("launch", "1xA100", "--phase", "fast", "--budget", "5", "--accept-exposure", "5", "-y"),
    *("--bucket", f"s3://{BUCKET}/of-tokens"),
)


def test_the_next_pod_has_its_tokens_from_the_bucket_but_for_a_damaged_one(
    tmp_path: Path, s3: S3
) -> None:
    with world(tmp_path, reach=[s3.port]) as (user, host):
        user.environment |= s3.environment
        try:
            user.run(*LAUNCH, within_s=300)
            first = _shards(host)
            assert len(first) >= 3
            index = _index(s3)
            assert {name.partition("/")[0] for name in index} == {"tokens", "tokenizers"}
            host.requests.clear()

            bad = max(name for name in index if name.endswith(".bin"))
            slot = index[bad]["slot"]
            (key,) = (key for key in s3.keys(BUCKET, "of-tokens/tokens/") if key.endswith(slot))
            content = bytearray(s3.read(BUCKET, key))
            content[10] ^= 1
            s3.client.put_object(Bucket=BUCKET, Key=key, Body=bytes(content))
            user.run(*LAUNCH, within_s=300)
            assert len(_shards(host)) == 1, "the damaged one alone is made anew"
            assert index == _index(s3)
            assert hashlib.sha256(s3.read(BUCKET, key)).hexdigest() == index[bad]["sha256"]
            runs = user.ledger().runs.values()
            assert {run.outcome for run in runs} <= {Outcome.FINISHED, None}
        finally:
            user.end_everything()


def _shards(host: DataHost) -> set[str]:
    return {asked.path for asked in host.requests if re.search(r"shard_\d+\.parquet", asked.path)}


def _index(s3: S3) -> dict[str, dict[str, object]]:
    (key,) = (key for key in s3.keys(BUCKET, "of-tokens/tokens/") if key.endswith("index.json"))
    return {file["name"]: file for file in json.loads(s3.read(BUCKET, key))["files"]}
