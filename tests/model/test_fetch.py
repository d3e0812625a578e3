"""Downloads from a real server that misbehaves: resumed, checked, patient; the hashes that a
host publishes."""

from __future__ import annotations

import errno
import hashlib
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate
from pathlib import Path

import pytest

from model.preparing import fetch as fetching
from model.preparing.cache import Cache, with_published_hashes
from model.preparing.fetch import Fetcher, RetryClock, TransientError
from model.preparing.growing import PreparationOptions
from tests.standins.data_host import COMMIT, DataHost, Fault, serving
from trmcloud.adapters.data_hosts import pin_to_commit
from trmcloud.core.catalog.datasets import DataSet, parse_data_set
from trmcloud.core.errors import DataError

# -- fetch --------------------------------------------------------------------------------------
# Downloads from a real server that misbehaves: resumed, checked, patient; a token kept close.


LINKED = "/datasets/me/x/resolve/main/shard_00000.parquet"
PLAIN = "/me/x/main/input.txt"
HUB = "https://huggingface.co"
RAW = "https://raw.githubusercontent.com"
BODY = random.Random(1).randbytes(3_000_000)
DIGEST = hashlib.sha256(BODY).hexdigest()


@pytest.fixture
def host() -> Iterator[DataHost]:
    with serving(DataHost({LINKED: BODY, PLAIN: BODY})) as made:
        yield made


class HandTime:
    """Time that only pauses move; ``then`` is called after each."""

    def __init__(self) -> None:
        self.at, self.paused = 1000.0, list[float]()
        self.then: Callable[[], None] = lambda: None

    def sleep(self, seconds: float) -> None:
        self.at += seconds
        self.paused.append(seconds)
        self.then()

    def pauses(self) -> RetryClock:
        return RetryClock(self.sleep, lambda: self.at, lambda: self.at, lambda: 0.5)


@pytest.fixture
def hand() -> HandTime:
    return HandTime()


@pytest.fixture
def fetcher(host: DataHost, hand: HandTime) -> Fetcher:
    return Fetcher(host.environment, hand.pauses())


def test_a_file_arrives_whole_and_once(host: DataHost, fetcher: Fetcher, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    for _ in range(2):
        made = fetcher.fetch(
            HUB + LINKED, tmp_path / "a.parquet", told=lambda *each: told.append(each)
        )
        assert (made.sha256, made.size_bytes) == (DIGEST, len(BODY))
    assert (tmp_path / "a.parquet").read_bytes() == BODY
    assert told[-1] == (len(BODY), len(BODY))
    assert len(host.asked(LINKED, "hub")) == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.parquet", "a.parquet.json"]


@pytest.mark.parametrize("path", [LINKED, PLAIN])
def test_a_cut_download_goes_on_from_there(
    host: DataHost, fetcher: Fetcher, tmp_path: Path, path: str
) -> None:
    host.faults[path] = Fault(cut_after=1_000_000, times=2)
    base = HUB if path == LINKED else RAW
    assert fetcher.fetch(base + path, tmp_path / "f").sha256 == DIGEST
    carrier = host.asked(path, "cdn" if path == LINKED else "hub")
    assert [each.headers.get("Range") for each in carrier] == [
        None,
        "bytes=1000000-",
        "bytes=2000000-",
    ]
    assert carrier[1].headers["If-Range"]


def test_another_process_goes_on_where_one_was_killed(
    host: DataHost, hand: HandTime, tmp_path: Path
) -> None:
    class Killed(BaseException):
        pass

    def die(done: int, total: int) -> None:
        if done >= 2_000_000:
            raise Killed

    with pytest.raises(Killed):
        Fetcher(host.environment, hand.pauses()).fetch(HUB + LINKED, tmp_path / "f", told=die)
    part = (tmp_path / "f.part").stat().st_size
    assert part >= 1_000_000
    made = Fetcher(host.environment, hand.pauses()).fetch(HUB + LINKED, tmp_path / "f")
    assert made.sha256 == DIGEST
    assert host.asked(LINKED, "cdn")[-1].headers["Range"] == f"bytes={part}-"


def test_a_changed_file_is_begun_anew(host: DataHost, fetcher: Fetcher, tmp_path: Path) -> None:
    host.faults[PLAIN] = Fault(cut_after=1_000_000, times=1)
    other = BODY[::-1]

    def change(done: int, total: int) -> None:
        if done == 1_000_000:
            host.files[PLAIN] = other

    made = fetcher.fetch(RAW + PLAIN, tmp_path / "f", told=change)
    assert made.sha256 == hashlib.sha256(other).hexdigest()
    assert (tmp_path / "f").read_bytes() == other


def test_a_host_that_ignores_ranges_costs_time_and_no_bytes_twice(
    host: DataHost, fetcher: Fetcher, tmp_path: Path
) -> None:
    host.faults[PLAIN] = Fault(cut_after=1_000_000, times=1, forgets_range=True)
    assert fetcher.fetch(RAW + PLAIN, tmp_path / "f").sha256 == DIGEST


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_minute_of_a_busy_host_is_borne_with(
    host: DataHost, fetcher: Fetcher, hand: HandTime, tmp_path: Path, status: int
) -> None:
    host.faults[LINKED] = Fault(status=status)

    def after() -> None:
        if hand.at >= 1060:
            host.faults.clear()

    hand.then = after
    assert fetcher.fetch(HUB + LINKED, tmp_path / "f").sha256 == DIGEST
    assert 60 <= sum(hand.paused) < 130
    assert len(hand.paused) < 10, "it does not hammer a host that is busy"
    assert hand.paused[:5] == sorted(hand.paused[:5])


@pytest.mark.parametrize("as_date", [False, True])
def test_retry_after_is_obeyed(
    host: DataHost, fetcher: Fetcher, hand: HandTime, tmp_path: Path, as_date: bool
) -> None:
    asks = formatdate(1042.0, usegmt=True) if as_date else "42"
    host.faults[LINKED] = Fault(status=429, retry_after=asks, times=1)
    assert fetcher.fetch(HUB + LINKED, tmp_path / "f").sha256 == DIGEST
    assert hand.paused == [42.0]


@pytest.mark.parametrize("retry_after", ["", "3600"])
def test_patience_ends_and_says_so(
    host: DataHost, fetcher: Fetcher, hand: HandTime, tmp_path: Path, retry_after: str
) -> None:
    host.faults[LINKED] = Fault(status=503, retry_after=retry_after)
    with pytest.raises(
        TransientError, match=r"the host sent nothing for .* it answered 503"
    ) as found:
        fetcher.fetch(HUB + LINKED, tmp_path / "f")
    assert "same command" in found.value.next_step
    assert sum(hand.paused) <= fetching.PATIENCE_S


def test_what_is_waited_for_is_told_from_the_third_try_on(hand: HandTime, tmp_path: Path) -> None:
    environment = {"TRMCLOUD_DATA_HOSTS": "huggingface.co=http://127.0.0.1:9"}
    told: list[str] = []
    fetcher = Fetcher(environment, hand.pauses(), patience_s=120, waits=told.append)
    with pytest.raises(TransientError, match="refused"):
        fetcher.fetch(HUB + LINKED, tmp_path / "f")
    assert len(told) == len(hand.paused) - 2 > 0
    (words,) = set(told)
    assert re.fullmatch(r"waiting for huggingface\.co \(.*refused.*\), at most 2 min", words)


@pytest.mark.parametrize(
    ("fault", "words", "step"),
    [
        (Fault(status=404), "was not found: the host answered 404", "the data set's page"),
        (Fault(status=403), "not give access to .*: it answered 403", "export HF_TOKEN"),
        (Fault(html=True), "a web page instead of", "in a browser"),
        (Fault(flip=5), "has SHA-256", "run it again"),
    ],
)
def test_what_waiting_does_not_mend_is_told_at_once(
    host: DataHost,
    fetcher: Fetcher,
    hand: HandTime,
    tmp_path: Path,
    fault: Fault,
    words: str,
    step: str,
) -> None:
    host.faults[LINKED] = fault
    with pytest.raises(DataError, match=words) as found:
        fetcher.fetch(HUB + LINKED, tmp_path / "shard_00000.parquet")
    assert not isinstance(found.value, TransientError)
    assert step in found.value.next_step
    assert found.value.where == HUB + LINKED
    assert hand.paused == []
    assert not (tmp_path / "shard_00000.parquet").exists()
    host.faults.clear()
    assert fetcher.fetch(HUB + LINKED, tmp_path / "shard_00000.parquet").sha256 == DIGEST


def test_a_known_hash_is_held_against_what_came(fetcher: Fetcher, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="SHA-256"):
        fetcher.fetch(RAW + PLAIN, tmp_path / "f", sha256="0" * 64)
    assert not (tmp_path / "f").exists()
    assert not (tmp_path / "f.part").exists(), "the wrong bytes are not gone on from"


def test_a_poisoned_one_is_fetched_anew(host: DataHost, fetcher: Fetcher, tmp_path: Path) -> None:
    fetcher.fetch(RAW + PLAIN, tmp_path / "f")
    (tmp_path / "f").write_bytes(BODY[::-1])
    assert fetcher.fetch(RAW + PLAIN, tmp_path / "f").sha256 == DIGEST
    assert (tmp_path / "f").read_bytes() == BODY


def test_a_token_goes_to_its_host_alone(host: DataHost, hand: HandTime, tmp_path: Path) -> None:
    host.needs_token = "hf_secret"
    environment = {**host.environment, "HF_TOKEN": "hf_secret"}
    fetcher = Fetcher(environment, hand.pauses())
    fetcher.fetch(HUB + LINKED, tmp_path / "a")
    fetcher.fetch(RAW + PLAIN, tmp_path / "b")
    [hub], [cdn] = host.asked(LINKED, "hub"), host.asked(LINKED, "cdn")
    assert hub.headers["Authorization"] == "Bearer hf_secret"
    assert "Authorization" not in cdn.headers, "the redirect leads to another host"
    assert "Authorization" not in host.asked(PLAIN)[0].headers, "GitHub has no business with it"
    assert not any("hf_secret" in path.read_text() for path in tmp_path.glob("*.json"))


def test_without_the_token_it_is_named(host: DataHost, fetcher: Fetcher, tmp_path: Path) -> None:
    host.needs_token = "hf_secret"
    with pytest.raises(DataError, match="401") as found:
        fetcher.fetch(HUB + LINKED, tmp_path / "f")
    assert found.value.next_step == "export HF_TOKEN=…"


def test_a_token_is_not_sent_in_the_clear(hand: HandTime) -> None:
    hosts = "huggingface.co=http://mirror.example"
    fetcher = Fetcher({"TRMCLOUD_DATA_HOSTS": hosts, "HF_TOKEN": "x"}, hand.pauses())
    assert fetcher._authorization(HUB + LINKED) == ""
    fetcher = Fetcher({"HF_TOKEN": "x"}, hand.pauses())
    assert fetcher._authorization(HUB + LINKED) == "Bearer x"


def test_a_full_disk(fetcher: Fetcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    class Full:
        def __init__(self, *_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(fetching, "open", Full, raising=False)
    with pytest.raises(TransientError, match="the disk is full"):
        fetcher.fetch(RAW + PLAIN, tmp_path / "f")
    monkeypatch.undo()
    assert fetcher.fetch(RAW + PLAIN, tmp_path / "f").sha256 == DIGEST


def test_downloads_share_a_slow_line_whole(host: DataHost, hand: HandTime, tmp_path: Path) -> None:
    """The bench measures the share; here it is only that eight at once come to no harm."""
    host.files.update({f"/f{number}": BODY[: 1_000_000 + number] for number in range(8)})
    host.bytes_per_second = 8e6
    fetcher = Fetcher(host.environment, hand.pauses())
    began = time.monotonic()
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda n: fetcher.fetch(f"{RAW}/f{n}", tmp_path / f"f{n}"), range(8)))
    assert [each.size_bytes for each in made] == [1_000_000 + number for number in range(8)]
    assert time.monotonic() - began >= 0.8, "a second, less what the host lets burst"


def test_hugging_faces_own_client_is_content_with_this_host(host: DataHost, tmp_path: Path) -> None:
    """The second opinion on the stand-in: redirect, headers and resume as the client wants them."""
    pytest.importorskip("huggingface_hub")
    body = random.Random(2).randbytes(25_000_000)
    host.files[LINKED] = body
    host.faults[LINKED] = Fault(cut_after=22_000_000, times=1)
    host.needs_token = "hf_secret"
    code = (
        "from huggingface_hub import hf_hub_download as get; import sys; "
        "print(get('me/x', 'shard_00000.parquet', repo_type='dataset', local_dir=sys.argv[1]))"
    )
    environment = {
        **os.environ,
        "HF_ENDPOINT": host.hub,
        "HF_TOKEN": "hf_secret",
        "HF_HOME": str(tmp_path / "home"),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_OFFLINE": "0",  # an exporter's check, run in this process before, switches it on
        # Its own ten seconds are for a network, and not for a machine on which tests compete.
        "HF_HUB_ETAG_TIMEOUT": "120",
        "HF_HUB_DOWNLOAD_TIMEOUT": "120",
    }
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env=environment, capture_output=True, text=True, timeout=400,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "shard_00000.parquet").read_bytes() == body
    theirs = host.asked(LINKED, "cdn")
    sent = [{key.lower(): value for key, value in each.headers.items()} for each in theirs]
    # It keeps what came in pieces of 10 MiB.
    assert [each.get("range") for each in sent] == [None, f"bytes={20 << 20}-"]
    assert not any("authorization" in each for each in sent), "as ours: dropped at the CDN"


# -- Hashes that a host publishes, asked for again where the files are fetched ------------------


PATH = "/datasets/me/x/resolve/main/en/"
NAMES = [f"shard_{number}.parquet" for number in range(4)]


@pytest.fixture
def lister() -> Iterator[DataHost]:
    files: dict[str, bytes | Path] = {PATH + name: name.encode() * 9 for name in NAMES}
    files["/datasets/me/x/resolve/main/README.md"] = b"# about"
    with serving(DataHost(files, page_size=3)) as made:
        yield made


@pytest.fixture
def pinned(lister: DataHost) -> DataSet:
    found = pin_to_commit(
        parse_data_set(
            {
                "name": "x", "title": "x", "layout": "parquet", "shards": "shard_{:d}.parquet",
                "base_url": f"https://huggingface.co{PATH}", "last": 2, "validation": NAMES[3],
            },
            "",
        ),
        lister.environment,
    )  # fmt: skip
    assert found is not None
    assert found.data_set.base_url.endswith(f"/{COMMIT}/en/")
    return found.data_set


def of_pod(host: DataHost, pinned: DataSet, folder: Path, patience_s: float = 600.0) -> DataSet:
    means = PreparationOptions(host.environment, folder, patience_s=patience_s)
    return with_published_hashes(pinned, Cache(folder), means.fetcher())


def test_a_pod_has_the_launchs_hashes(lister: DataHost, pinned: DataSet, tmp_path: Path) -> None:
    lister.faults[f"/api/datasets/me/x/tree/{COMMIT}/en"] = Fault(
        status=503, retry_after="0", times=1
    )
    made = of_pod(lister, pinned, tmp_path)
    assert made.sha256 == {
        name: lister.sha256(PATH + name, lister.read(PATH + name) or b"") for name in NAMES
    }
    asked = len(lister.requests)
    assert of_pod(lister, pinned, tmp_path) == made
    assert len(lister.requests) == asked, "it is kept"
    [kept] = (tmp_path / "listings").iterdir()
    kept.write_text('{"shard_0.parquet": "' + "0" * 64 + '"}')
    assert of_pod(lister, pinned, tmp_path) == made, "and believed by its hash alone"


def test_other_hashes_than_the_launch_was_given_are_refused(
    lister: DataHost, pinned: DataSet, tmp_path: Path
) -> None:
    lister.files[PATH + NAMES[1]] = b"other bytes"
    with pytest.raises(
        DataError,
        match="its host publishes different hashes here than on the machine that launched the run",
    ):
        of_pod(lister, pinned, tmp_path)


@pytest.mark.parametrize(
    ("fault", "error", "why"),
    [
        (Fault(status=404), DataError, "answered 404"),
        (Fault(html=True), DataError, "not JSON"),
        (Fault(status=503, retry_after="9"), TransientError, "the host sent nothing for"),
    ],
)
def test_a_list_that_does_not_come_is_one_error(
    lister: DataHost, pinned: DataSet, tmp_path: Path,
    fault: Fault, error: type[Exception], why: str,
) -> None:  # fmt: skip
    lister.faults[f"/api/datasets/me/x/tree/{COMMIT}/en"] = fault
    with pytest.raises(error, match=why):
        of_pod(lister, pinned, tmp_path, patience_s=5.0)
