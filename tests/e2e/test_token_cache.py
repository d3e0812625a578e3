"""Named data on rented machines with a bucket: the tokens that one made are there for the next.

The first is RunPod's own, the second comes by SkyPilot.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.e2e.mission import world
from tests.e2e.user import until
from tests.standins.data_host import DataHost
from tests.standins.s3 import BUCKET, S3, s3
from tests.unit.skypilot.rig import stand_in
from trmcloud.core.errors import Outcome

__all__ = ["s3"]

LAUNCH = (
    *("launch", "1xA100", "--phase", "fast", "--budget", "5", "--accept-exposure", "5", "-y"),
    *("--bucket", f"s3://{BUCKET}/of-tokens"),
)
pytestmark = pytest.mark.more  # tests/contract/test_token_cache.py holds what the parts do
VIA = ("--via", "skypilot", "--provider", "runpod", "--allow-account-key-on-pod")


def test_the_next_pod_has_its_tokens_from_the_bucket_but_for_damaged_ones(
    tmp_path: Path, s3: S3
) -> None:
    with world(tmp_path, reach=[s3.port]) as (user, host):
        user.environment |= s3.environment
        try:
            user.run(*LAUNCH, within_s=300)
            outcomes = {run.outcome for run in user.ledger().runs.values()}
            assert outcomes <= {Outcome.FINISHED, None}  # its bill may be still to come
            first_runs = set(user.ledger().runs)
            assert len(_shards(host)) >= 3
            index = _index(s3)
            assert {name.partition("/")[0] for name in index} == {"tokens", "tokenizers"}
            host.requests.clear()

            # All but one are damaged: which of them are asked for before it has trained to its end
            # is the machine's, but never none.
            stored = [name for name in index if name.endswith(".bin")]
            damaged = stored[1:]
            assert damaged
            for name in damaged:
                key = _key(s3, index, name)
                content = bytearray(s3.read(BUCKET, key))
                content[10] ^= 1
                s3.client.put_object(Bucket=BUCKET, Key=key, Body=bytes(content))
            account = {
                "url": user.environment["TRMCLOUD_RUNPOD_API"],
                "key": user.environment.pop("RUNPOD_API_KEY"),
            }
            state = tmp_path / "sky.json"
            state.write_text(json.dumps({"runpod": account, "enabled": ["RunPod"]}))
            user.environment["TRMCLOUD_SKY"] = str(stand_in(tmp_path / "sky", state))
            user.run(*LAUNCH, *VIA, "-d", within_s=300)
            (run,) = set(user.ledger().runs) - first_runs
            until(lambda: 12 in _steps(s3, run), within_s=200, what="it trains to its end")
            assert _shards(host), "what was damaged is made anew"
            until(lambda: _refused(tmp_path) >= 1, what="it is told in the pod's log")
        finally:
            user.end_everything()


def _key(s3: S3, index: dict[str, dict[str, object]], name: str) -> str:
    """Of the object that holds a file of the cache."""
    keys = s3.keys(BUCKET, "of-tokens/tokens/")
    return next(key for key in keys if key.endswith(str(index[name]["slot"])))


def _refused(folder: Path) -> int:
    """How many files of the bucket the pods' uploaders have refused by their pinned hashes."""
    logs = [path.read_text() for path in folder.rglob("upload.log")]
    return sum(log.count("in the bucket differs from the ledger: made again") for log in logs)


def _shards(host: DataHost) -> set[str]:
    return {asked.path for asked in host.requests if re.search(r"shard_\d+\.parquet", asked.path)}


def _steps(s3: S3, run: str) -> set[int]:
    """Of the checkpoints that are whole in the bucket."""
    texts = [
        s3.read(BUCKET, key)
        for key, size in s3.keys(BUCKET, f"of-tokens/runs/{run}/").items()
        if key.endswith("/manifest.json") and size
    ]
    # A slot that is written to anew has no manifest meanwhile.
    return {json.loads(text)["step"] for text in texts if text}


def _index(s3: S3) -> dict[str, dict[str, object]]:
    """What the entries of the first pod say, by the files' names."""
    keys = [key for key in s3.keys(BUCKET, "of-tokens/tokens/") if "/slot-" in key]
    entries = [json.loads(s3.read(BUCKET, key)) for key in keys if key.endswith(".json")]
    return {entry["name"]: entry for entry in entries}
