"""Hosts of data sets: what they answer, taken apart, and data sets at one commit."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from email.message import Message
from http.client import BadStatusLine
from pathlib import Path
from typing import Any

import pytest

from tests.standins.data_host import COMMIT, DataHost, Fault, serving
from trmcloud.adapters import data_hosts
from trmcloud.adapters.data_hosts import check_files, pin_to_commit
from trmcloud.adapters.files import all_data_sets, load_data_set
from trmcloud.core.catalog import datasets
from trmcloud.core.catalog.datasets import DataSet, one_file
from trmcloud.core.errors import DataError, MissingExtra

# -- data hosts ---------------------------------------------------------------------------------
# What a host of data sets answers, taken apart: lengths, redirects, a file's first words.
# ``tests/model/test_fetch.py`` holds the stand-in of such hosts against Hugging Face's own
# client; here the answers are those that no honest host gives.


NAME = "part-00000.bin"


class Answer(io.BytesIO):
    def __init__(self, content: bytes, kind: str = "application/octet-stream", **told: str) -> None:
        super().__init__(content)
        self.headers = _headers({"Content-Type": kind, **told})


def _headers(told: dict[str, str]) -> Message:
    made = Message()
    for name, value in told.items():
        made[name.replace("_", "-")] = value
    return made


def moved(to: str | None = None, code: int = 302, **told: str) -> Callable[[], Exception]:
    where = {"Location": to} if to is not None else {}
    headers = _headers({**where, **told})
    return lambda: urllib.error.HTTPError("x", code, "", headers, io.BytesIO())


class Host:
    """Answers in turn, the last one again and again."""

    def __init__(self) -> None:
        self.answers: list[Any] = []
        self.asked: list[urllib.request.Request] = []

    def send(self, request: urllib.request.Request, timeout_s: float) -> Any:
        assert timeout_s == 20.0
        self.asked.append(request)
        answer = self.answers[min(len(self.asked), len(self.answers)) - 1]
        if callable(answer):
            answer = answer()
        if isinstance(answer, Exception):
            raise answer
        return Answer(*answer) if isinstance(answer, tuple) else answer

    def checked(self, *answers: Any, layout: str = "text", **of: Any) -> tuple[bool, str]:
        """What is found of the one file that there is."""
        self.answers, self.asked = list(answers), []
        there = DataSet(
            name="n", title="t", layout=layout, base_url="https://huggingface.co/",
            shards="part-{:05d}.bin", **of,
        )  # fmt: skip
        (found,) = check_files(there, environ={"HF_TOKEN": "SECRET"})
        assert found.name == NAME
        return found.good, found.detail


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    made = Host()
    monkeypatch.setattr(data_hosts, "send", made.send)
    return made


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"Content_Range": "bytes 0-0/1234567"}, "1,234,567 bytes"),
        ({"Content_Range": "bytes 0-0/*", "Content_Length": "5"}, "5 bytes"),
        ({"Content_Length": " 5 "}, "5 bytes"),
        ({}, "length not given"),
        ({"Content_Length": "0"}, "length not given"),
        ({"Content_Length": "5, 5"}, "length not given"),
        ({"Content_Length": "-5"}, "length not given"),
        ({"Content_Length": "\u00b2"}, "length not given"),
        ({"Content_Range": "bytes 0-0/\u00b2"}, "length not given"),
        ({"Content_Range": "bytes 0-0/" + "9" * 5000}, "length not given"),
    ],
)
def test_a_length_is_one_or_is_not_told(host: Host, told: dict[str, str], said: str) -> None:
    assert host.checked(lambda: Answer(b"x", **told)) == (True, f"{said}, text")


@pytest.mark.parametrize(
    ("size", "said"), [("7", "7 bytes"), ("x", "length not given"), ("\u00b2", "length not given")]
)
def test_a_redirect_may_tell_the_length_too(host: Host, size: str, said: str) -> None:
    there = moved("https://cdn.test/x", X_Linked_Size=size)
    assert host.checked(there, (b"x",))[1].startswith(said)
    first, second, *_ = host.asked
    assert [request.get_header("Range") for request in host.asked[:2]] == ["bytes=0-0"] * 2
    assert first.get_header("Authorization") == "Bearer SECRET"
    assert second.get_header("Authorization") is None, "the token is for its own host alone"
    assert second.full_url == "https://cdn.test/x"


@pytest.mark.parametrize(
    "to", ["file:///etc/passwd", "ftp://x/y", "http://[", "data:,x", "foo:bar", "//[x"]
)
def test_a_redirect_leads_to_a_server_or_nowhere(host: Host, to: str) -> None:
    says = "the host redirects to an invalid address"
    assert host.checked(moved(to)) == (False, says)
    assert len(host.asked) == 1


def test_a_redirect_without_end_is_given_up(host: Host) -> None:
    for answer in (moved("/again"), moved(None), moved("https://other.test", 308)):
        assert host.checked(answer) == (False, "the host redirects without end")
        assert len(host.asked) == 5


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (moved(code=401), "the host answered 401: export HF_TOKEN=…"),
        (moved(code=403), "the host answered 403: export HF_TOKEN=…"),
        (moved(code=404), "the host answered 404"),
        (moved(code=304), "the host answered 304"),
        ((b"<html>", "text/html"), "the host answered with a web page"),
        (TimeoutError("timed out"), "no answer: timed out"),
        (urllib.error.URLError("no route"), "no answer: no route"),
        (BadStatusLine("x" * 9000), "no answer: " + "x" * 189),
        (ValueError("nonnumeric port"), "no answer: nonnumeric port"),
    ],
)
def test_what_cannot_be_had_is_said_in_one_line(host: Host, answer: Any, said: str) -> None:
    assert host.checked(answer) == (False, said)


def test_a_hash_that_is_told_is_held_against_the_one_that_is_known(host: Host) -> None:
    known: dict[str, Any] = {"sha256": {NAME: "a" * 64}}
    other = moved("https://cdn.test/x", X_Linked_ETag=f'"{"b" * 64}"')
    same = moved("https://cdn.test/x", X_Linked_ETag=f'"{"a" * 64}"')
    says = f"SHA-256 {'b' * 16}…, not {'a' * 16}…"
    assert host.checked(other, (b"x",), **known) == (False, says)
    assert "hash as published" in host.checked(same, (b"x",), same, (b"x",), **known)[1]
    assert "no published hash" in host.checked((b"x",), **known)[1]


# -- its first words ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "good", "said"),
    [
        (b'{"text": 1, "id": 2}\n', True, "keys text, id"),
        (b'{"id": 2}', False, "it has id, not text"),
        (b'{"text": 1}\n{"id": 2}\n{"cut', True, "keys text"),
        (b"{}", False, "it has nothing, not text"),
        (b"[1]", False, "its first line is not a JSON object"),
        (b"5", False, "its first line is not a JSON object"),
        (b'"text"', False, "its first line is not a JSON object"),
        (b"null", False, "its first line is not a JSON object"),
        (b"", False, "its first line is not JSON"),
        (b"\n", False, "its first line is not JSON"),
        (b"{'text': 1}", False, "its first line is not JSON"),
        (b"\xff\xfe\n", False, "its first line is not JSON"),
        (b"[" * 60_000, False, "its first line is not JSON"),
        (b"9" * 5000, False, "its first line is not JSON"),
    ],
)
def test_a_first_line_of_json(host: Host, head: bytes, good: bool, said: str) -> None:
    found = host.checked((b"x",), (head,), layout="jsonl")
    assert host.asked[-1].get_header("Range") == "bytes=0-65535"
    assert found == (good, f"length not given, {said}" if good else said)


@pytest.mark.parametrize(
    ("head", "good", "said"),
    [
        (struct.pack("<3i", 20240520, 1, 1234), True, "1,234 tokens"),
        (struct.pack("<5i", 20240520, 1, 1234, 5, 6), True, "1,234 tokens"),
        (
            struct.pack("<3i", 20240521, 1, 1234),
            False,
            "it is not a file of GPT-2 tokens: its first bytes differ",
        ),
        (
            struct.pack("<3i", 20240520, 1, 1234)[:11],
            False,
            "it is not a file of GPT-2 tokens: its first bytes differ",
        ),
        (b"", False, "it is not a file of GPT-2 tokens: its first bytes differ"),
    ],
)
def test_a_head_of_gpt2s_tokens(host: Host, head: bytes, good: bool, said: str) -> None:
    found, detail = host.checked((b"x",), (head,), layout="gpt2")
    assert (found, detail.endswith(said)) == (good, True)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + b"\xff" * 40 + b"PAR1", b"x" * 200])
def test_what_is_no_parquet(host: Host, content: bytes) -> None:
    def part() -> Any:
        asked = host.asked[-1].get_header("Range") or ""
        start, _, end = asked.removeprefix("bytes=").partition("-")
        told = f"bytes {start}-{end}/{len(content)}"
        return Answer(content[int(start) : int(end) + 1], Content_Range=told)

    class Parts(list[Any]):
        def __getitem__(self, place: Any) -> Any:
            return part()

        def __len__(self) -> int:
            return 1

    host.answers = Parts()
    there = DataSet(
        name="n", title="t", layout="parquet", base_url="https://x/", shards="part-{:05d}.bin"
    )
    (found,) = check_files(there, environ={})
    assert not found.good
    assert found.detail.startswith("no parquet: ")
    assert len(found.detail) <= 200


def test_a_parquets_columns_are_read_from_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow
    import pyarrow.parquet as parquet

    file = io.BytesIO()
    parquet.write_table(pyarrow.table({"text": ["a"], "id": [1]}), file)
    content = file.getvalue()

    def send(request: urllib.request.Request, timeout_s: float) -> Any:
        start, _, end = (request.get_header("Range") or "").removeprefix("bytes=").partition("-")
        told = f"bytes {start}-{end}/{len(content)}"
        return Answer(content[int(start) : int(end) + 1], Content_Range=told)

    monkeypatch.setattr(data_hosts, "send", send)
    found = []
    for column in ("text", "body"):
        there = DataSet(
            name="n", title="t", layout="parquet", base_url="https://x/", column=column,
            shards="part-{:05d}.bin",
        )  # fmt: skip
        found += [(c.good, c.detail) for c in check_files(there, environ={})]
    assert found == [
        (True, f"{len(content):,} bytes, column 'text' among 2"),
        (False, "it has columns text, id, not 'body'"),
    ]


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_every_code_of_a_redirect_is_followed(host: Host, code: int) -> None:
    assert host.checked(moved("/there", code), (b"x",))[0]
    assert host.asked[1].full_url == "https://huggingface.co/there"


@pytest.mark.parametrize("code", [300, 304, 305, 306, 309])
def test_no_other_code_is_one(host: Host, code: int) -> None:
    assert host.checked(moved("/there", code)) == (False, f"the host answered {code}")


def test_what_the_first_redirect_tells_counts(host: Host) -> None:
    first = moved("/a", X_Linked_Size="7", X_Linked_ETag=f'"{"a" * 64}"')
    other = moved("/b", X_Linked_Size="8", X_Linked_ETag=f'"{"b" * 64}"')
    for then in (moved("/b"), other):
        good, said = host.checked(
            first, then, lambda: Answer(b"x"), layout="text", sha256={NAME: "a" * 64}
        )
        assert good
        assert said.startswith("7 bytes, hash as published")


def test_where_no_token_would_help_none_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(request: urllib.request.Request, timeout_s: float) -> Any:
        raise moved(code=403)()

    monkeypatch.setattr(data_hosts, "send", refuse)
    there = DataSet(name="n", title="t", layout="text", base_url="https://example.com/", shards="a")
    (found,) = check_files(there, environ={"HF_TOKEN": "SECRET"})
    assert found.detail == "the host answered 403"


def test_without_parquet_the_extra_is_named(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match="reading parquet"):
        host.checked((b"x",), layout="parquet")


def test_what_a_reader_of_parquet_says_is_cut(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow
    import pyarrow.parquet as parquet

    def refuse(file: Any) -> Any:
        raise pyarrow.ArrowInvalid("x" * 500)

    monkeypatch.setattr(parquet, "read_schema", refuse)
    said = host.checked((b"x",), layout="parquet")[1]
    assert said == "no parquet: " + "x" * 188


# -- hub ----------------------------------------------------------------------------------------
# Data sets of Hugging Face at one commit: asked of a host that answers as its own client knows.


REPOSITORY = "karpathy/fineweb-edu-100b-shuffle"
PATH = f"/datasets/{REPOSITORY}/resolve/main/"
SHARDS = [f"shard_{number:05d}.parquet" for number in (0, 1, 2, 1822)]


@pytest.fixture
def mirror() -> Iterator[DataHost]:
    files: dict[str, bytes | Path] = {PATH + name: name.encode() * 9 for name in SHARDS}
    files[PATH + "README.md"] = b"# about"
    with serving(DataHost(files, without_lfs=frozenset({"README.md"}))) as made:
        yield made


@pytest.fixture
def data_set() -> DataSet:
    return load_data_set("fineweb-edu")


def test_a_branch_becomes_the_commit_that_it_points_to(mirror: DataHost, data_set: DataSet) -> None:
    mirror.page_size = 2  # three pages
    found = pin_to_commit(data_set, mirror.environment)
    assert found is not None
    assert (found.repository, found.branch, found.revision) == (REPOSITORY, "main", COMMIT)
    base = f"https://huggingface.co/datasets/{REPOSITORY}/resolve/{COMMIT}/"
    assert found.data_set.base_url == base
    hashes = {name: mirror.sha256(PATH + name, mirror.read(PATH + name) or b"") for name in SHARDS}
    assert found.data_set.listing == datasets.listing_sha256(hashes)
    assert len([each for each in mirror.requests if "/tree/" in each.path]) == 3
    again = pin_to_commit(found.data_set, mirror.environment)
    assert again is not None
    assert again.data_set == found.data_set, "a commit stays what it is"
    mirror.files[PATH + SHARDS[1]] = b"other bytes"
    other = pin_to_commit(data_set, mirror.environment)
    assert other is not None
    assert other.data_set.listing != found.data_set.listing


def test_what_hugging_faces_own_client_reads_is_what_is_pinned(
    mirror: DataHost, data_set: DataSet, tmp_path: Path
) -> None:
    """The second source: their client asks the same host for commit, files and hashes."""
    pytest.importorskip("huggingface_hub")
    mirror.page_size = 2
    program = (
        "import sys; from huggingface_hub import HfApi; api = HfApi(endpoint=sys.argv[1]);"
        "sha = api.dataset_info(sys.argv[2], revision='main').sha; print(sha);"
        "[print(f.path, f.lfs.sha256) for f in"
        " api.list_repo_tree(sys.argv[2], revision=sha, repo_type='dataset') if f.lfs]"
    )
    told = subprocess.run(
        [sys.executable, "-c", program, mirror.hub, REPOSITORY],
        capture_output=True, text=True, check=True, env={"HF_HOME": str(tmp_path)},
    ).stdout.splitlines()  # fmt: skip
    hashes = dict(line.split() for line in told[1:])
    found = pin_to_commit(data_set, mirror.environment)
    assert found is not None
    assert told[0] == found.revision
    assert (
        datasets.listing_sha256(datasets.hub_files_of(data_set, hashes)) == found.data_set.listing
    )
    assert len(hashes) == len(SHARDS)


def test_an_address_on_hugging_face_is_pinned_and_others_are_left(mirror: DataHost) -> None:
    address = f"https://huggingface.co{PATH}{SHARDS[0]}"
    found = pin_to_commit(one_file(address), mirror.environment)
    assert found is not None
    assert found.data_set.address(SHARDS[0]) == address.replace("/main/", f"/{COMMIT}/")
    assert found.data_set.listing
    for other in ("https://example.org/datasets/a/b/resolve/main/x.jsonl", "http://h/x.txt"):
        assert pin_to_commit(one_file(other), mirror.environment) is None


def test_every_named_set_is_at_a_commit_has_hashes_or_is_pinned_when_it_is_launched() -> None:
    for each in all_data_sets():
        if not each.is_remote:
            continue
        names = [*each.shard_names(), *([each.validation] if each.validation else [])]
        files = datasets.hub_files(each)
        assert files is not None or set(names) <= set(each.sha256), each.name


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (Fault(status=401), "export HF_TOKEN"),
        (Fault(status=500), "answered 500"),
        (Fault(html=True), "not JSON"),
        (Fault(status=404), "answered 404"),
    ],
)
@pytest.mark.parametrize("part", ["revision/main", f"tree/{COMMIT}"])
def test_a_host_that_does_not_say_is_one_error(
    mirror: DataHost, data_set: DataSet, fault: Fault, why: str, part: str
) -> None:
    mirror.faults[f"/api/datasets/{REPOSITORY}/{part}"] = replace(fault)
    with pytest.raises(DataError, match=why) as found:
        pin_to_commit(data_set, mirror.environment)
    assert "fineweb-edu cannot be pinned" in str(found.value)


def test_a_hash_on_record_is_held_to(mirror: DataHost, data_set: DataSet) -> None:
    known = replace(data_set, sha256={SHARDS[0]: "0" * 64})
    with pytest.raises(DataError, match="differs from the file recorded here"):
        pin_to_commit(known, mirror.environment)


@pytest.mark.parametrize(
    ("answer", "commit"),
    [({"sha": COMMIT}, COMMIT), ({"sha": "main"}, ""), ([], ""), (None, ""), ({"sha": 7}, "")],
)
def test_only_a_commit_is_one(answer: object, commit: str) -> None:
    assert datasets.commit_of(answer) == commit


def test_odd_lists_give_no_hashes() -> None:
    good = {"path": "a/x", "lfs": {"oid": "0" * 64}}
    odd = [7, {}, {"path": 3}, {"path": "a/y", "lfs": 1}, {"path": "a/z", "lfs": {"oid": "x"}}]
    assert datasets.hashes_in([good, *odd, {**good, "path": "b/x"}], "a/") == {"x": "0" * 64}
    assert datasets.hashes_in({"error": "no"}, "") == {}
    assert datasets.next_page('<http://evil/x?cursor=1>; rel="next"') == ""
    link = '<http://127.0.0.1:1/api/datasets/a/b/tree/c?cursor=Z>; rel="next"'
    assert datasets.next_page(link) == "https://huggingface.co/api/datasets/a/b/tree/c?cursor=Z"
