"""Data sets of Hugging Face at one commit: asked of a host that answers as its own client knows."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.standins.data_host import COMMIT, DataHost, Fault, serving
from trmcloud.adapters.data_hosts import pin_to_commit
from trmcloud.adapters.files.data_sets import all_data_sets, load_data_set
from trmcloud.core.catalog import hub
from trmcloud.core.catalog.datasets import DataSet, one_file
from trmcloud.core.errors import DataError

REPOSITORY = "karpathy/fineweb-edu-100b-shuffle"
PATH = f"/datasets/{REPOSITORY}/resolve/main/"
SHARDS = [f"shard_{number:05d}.parquet" for number in (0, 1, 2, 1822)]


@pytest.fixture
def host() -> Iterator[DataHost]:
    files: dict[str, bytes | Path] = {PATH + name: name.encode() * 9 for name in SHARDS}
    files[PATH + "README.md"] = b"# about"
    with serving(DataHost(files, without_lfs=frozenset({"README.md"}))) as made:
        yield made


@pytest.fixture
def data_set() -> DataSet:
    return load_data_set("fineweb-edu")


def test_a_branch_becomes_the_commit_that_it_points_to(host: DataHost, data_set: DataSet) -> None:
    host.page_size = 2  # three pages
    found = pin_to_commit(data_set, host.environment)
    assert found is not None
    assert (found.repository, found.branch, found.revision) == (REPOSITORY, "main", COMMIT)
    base = f"https://huggingface.co/datasets/{REPOSITORY}/resolve/{COMMIT}/"
    assert found.data_set.base_url == base
    hashes = {name: host.sha256(PATH + name, host.read(PATH + name) or b"") for name in SHARDS}
    assert found.data_set.listing == hub.listing_sha256(hashes)
    assert len([each for each in host.requests if "/tree/" in each.path]) == 3
    again = pin_to_commit(found.data_set, host.environment)
    assert again is not None
    assert again.data_set == found.data_set, "a commit stays what it is"
    host.files[PATH + SHARDS[1]] = b"other bytes"
    other = pin_to_commit(data_set, host.environment)
    assert other is not None
    assert other.data_set.listing != found.data_set.listing


def test_what_hugging_faces_own_client_reads_is_what_is_pinned(
    host: DataHost, data_set: DataSet, tmp_path: Path
) -> None:
    """The second source: their client asks the same host for commit, files and hashes."""
    pytest.importorskip("huggingface_hub")
    host.page_size = 2
    program = (
        "import sys; from huggingface_hub import HfApi; api = HfApi(endpoint=sys.argv[1]);"
        "sha = api.dataset_info(sys.argv[2], revision='main').sha; print(sha);"
        "[print(f.path, f.lfs.sha256) for f in"
        " api.list_repo_tree(sys.argv[2], revision=sha, repo_type='dataset') if f.lfs]"
    )
    told = subprocess.run(
        [sys.executable, "-c", program, host.hub, REPOSITORY],
        capture_output=True, text=True, check=True, env={"HF_HOME": str(tmp_path)},
    ).stdout.splitlines()  # fmt: skip
    hashes = dict(line.split() for line in told[1:])
    found = pin_to_commit(data_set, host.environment)
    assert found is not None
    assert told[0] == found.revision
    assert hub.listing_sha256(hub.of_set(data_set, hashes)) == found.data_set.listing
    assert len(hashes) == len(SHARDS)


def test_an_address_on_hugging_face_is_pinned_and_others_are_left(host: DataHost) -> None:
    address = f"https://huggingface.co{PATH}{SHARDS[0]}"
    found = pin_to_commit(one_file(address), host.environment)
    assert found is not None
    assert found.data_set.address(SHARDS[0]) == address.replace("/main/", f"/{COMMIT}/")
    assert found.data_set.listing
    for other in ("https://example.org/datasets/a/b/resolve/main/x.jsonl", "http://h/x.txt"):
        assert pin_to_commit(one_file(other), host.environment) is None


def test_every_named_set_is_at_a_commit_has_hashes_or_is_pinned_when_it_is_launched() -> None:
    for each in all_data_sets():
        if not each.is_remote:
            continue
        names = [*each.shard_names(), *([each.validation] if each.validation else [])]
        files = hub.hub_files(each)
        assert files is not None or set(names) <= set(each.sha256), each.name


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (Fault(status=401), "export HF_TOKEN"),
        (Fault(status=500), "answered 500"),
        (Fault(html=True), "no JSON"),
        (Fault(status=404), "answered 404"),
    ],
)
@pytest.mark.parametrize("part", ["revision/main", f"tree/{COMMIT}"])
def test_a_host_that_does_not_say_is_one_error(
    host: DataHost, data_set: DataSet, fault: Fault, why: str, part: str
) -> None:
    host.faults[f"/api/datasets/{REPOSITORY}/{part}"] = replace(fault)
    with pytest.raises(DataError, match=why) as found:
        pin_to_commit(data_set, host.environment)
    assert "fineweb-edu cannot be pinned" in str(found.value)


def test_a_hash_on_record_is_held_to(host: DataHost, data_set: DataSet) -> None:
    known = replace(data_set, sha256={SHARDS[0]: "0" * 64})
    with pytest.raises(DataError, match="is another file than the one on record"):
        pin_to_commit(known, host.environment)


@pytest.mark.parametrize(
    ("answer", "commit"),
    [({"sha": COMMIT}, COMMIT), ({"sha": "main"}, ""), ([], ""), (None, ""), ({"sha": 7}, "")],
)
def test_only_a_commit_is_one(answer: object, commit: str) -> None:
    assert hub.commit_of(answer) == commit


def test_odd_lists_give_no_hashes() -> None:
    good = {"path": "a/x", "lfs": {"oid": "0" * 64}}
    odd = [7, {}, {"path": 3}, {"path": "a/y", "lfs": 1}, {"path": "a/z", "lfs": {"oid": "x"}}]
    assert hub.hashes_in([good, *odd, {**good, "path": "b/x"}], "a/") == {"x": "0" * 64}
    assert hub.hashes_in({"error": "no"}, "") == {}
    assert hub.next_page('<http://evil/x?cursor=1>; rel="next"') == ""
    link = '<http://127.0.0.1:1/api/datasets/a/b/tree/c?cursor=Z>; rel="next"'
    assert hub.next_page(link) == "https://huggingface.co/api/datasets/a/b/tree/c?cursor=Z"
