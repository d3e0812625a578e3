"""Hashes that a host publishes, asked for again where the files are fetched."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from model.preparing.cache import Cache, with_published_hashes
from model.preparing.fetch import PassingError
from model.preparing.growing import Means
from tests.standins.data_host import COMMIT, DataHost, Fault, serving
from trmcloud.adapters.data_hosts import pin_to_commit
from trmcloud.core.catalog.datasets import DataSet, parse_data_set
from trmcloud.core.errors import DataError

PATH = "/datasets/me/x/resolve/main/en/"
NAMES = [f"shard_{number}.parquet" for number in range(4)]


@pytest.fixture
def host() -> Iterator[DataHost]:
    files: dict[str, bytes | Path] = {PATH + name: name.encode() * 9 for name in NAMES}
    files["/datasets/me/x/resolve/main/README.md"] = b"# about"
    with serving(DataHost(files, page_size=3)) as made:
        yield made


@pytest.fixture
def pinned(host: DataHost) -> DataSet:
    found = pin_to_commit(
        parse_data_set(
            {
                "name": "x", "title": "x", "layout": "parquet", "shards": "shard_{:d}.parquet",
                "base_url": f"https://huggingface.co{PATH}", "last": 2, "validation": NAMES[3],
            },
            "",
        ),
        host.environment,
    )  # fmt: skip
    assert found is not None
    assert found.data_set.base_url.endswith(f"/{COMMIT}/en/")
    return found.data_set


def of_pod(host: DataHost, pinned: DataSet, folder: Path, patience_s: float = 600.0) -> DataSet:
    means = Means(host.environment, folder, patience_s=patience_s)
    return with_published_hashes(pinned, Cache(folder), means.fetcher())


def test_a_pod_has_the_hashes_that_the_launch_was_given(
    host: DataHost, pinned: DataSet, tmp_path: Path
) -> None:
    host.faults[f"/api/datasets/me/x/tree/{COMMIT}/en"] = Fault(
        status=503, retry_after="0", times=1
    )
    made = of_pod(host, pinned, tmp_path)
    assert made.sha256 == {
        name: host.sha256(PATH + name, host.read(PATH + name) or b"") for name in NAMES
    }
    asked = len(host.requests)
    assert of_pod(host, pinned, tmp_path) == made
    assert len(host.requests) == asked, "it is kept"
    [kept] = (tmp_path / "listings").iterdir()
    kept.write_text('{"shard_0.parquet": "' + "0" * 64 + '"}')
    assert of_pod(host, pinned, tmp_path) == made, "and believed by its hash alone"


def test_other_hashes_than_the_launch_was_given_are_refused(
    host: DataHost, pinned: DataSet, tmp_path: Path
) -> None:
    host.files[PATH + NAMES[1]] = b"other bytes"
    with pytest.raises(DataError, match="publishes other hashes here"):
        of_pod(host, pinned, tmp_path)


def test_a_file_that_is_not_the_published_one_is_refused(
    host: DataHost, pinned: DataSet, tmp_path: Path
) -> None:
    made = of_pod(host, pinned, tmp_path)
    host.files[PATH + NAMES[1]] = b"other bytes"  # and its host says so itself
    fetcher = Means(host.environment, tmp_path).fetcher()
    with pytest.raises(DataError, match="has SHA-256"):
        fetcher.fetch(made.address(NAMES[1]), tmp_path / "one", sha256=made.sha256[NAMES[1]])


@pytest.mark.parametrize(
    ("fault", "error", "why"),
    [
        (Fault(status=404), DataError, "answered 404"),
        (Fault(html=True), DataError, "no JSON"),
        (Fault(status=503, retry_after="9"), PassingError, "the host gave nothing"),
    ],
)
def test_a_list_that_does_not_come_is_one_error(
    host: DataHost, pinned: DataSet, tmp_path: Path,
    fault: Fault, error: type[Exception], why: str,
) -> None:  # fmt: skip
    host.faults[f"/api/datasets/me/x/tree/{COMMIT}/en"] = fault
    with pytest.raises(error, match=why):
        of_pod(host, pinned, tmp_path, patience_s=5.0)
