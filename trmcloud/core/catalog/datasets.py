"""Data sets: named ones and those on Hugging Face at one revision. Pure."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from trmcloud.core.contract.pod_contract import ENV_DATA_HOSTS
from trmcloud.core.errors import UsageError
from trmcloud.core.nearest import nearest, suggest_name
from trmcloud.core.values import Value, replace

# Data sets on Hugging Face at one revision: addresses of its API, and what its answers say. Pure.
#
# A branch may point to other files tomorrow; a commit cannot. Of ``/api/datasets/REPO`` the path
# ``/revision/NAME`` says which commit a branch points to (``sha``), and ``/tree/COMMIT`` lists
# the files, a thousand a page, the next page in a ``Link`` header. A file that Git LFS keeps has
# its SHA-256 as ``lfs.oid``. Held against Hugging Face's own client in
# ``tests/unit/test_data_hosts.py``.

HUB = "https://huggingface.co"
MAX_ANSWER_BYTES = 16 << 20
MOST_PAGES = 100

_FILES = re.compile(r"/datasets/([\w.-]+(?:/[\w.-]+)?)/resolve/([^/]+)/((?:[^/]+/)*)")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_NEXT = re.compile(r'<([^<>]+)>\s*;\s*rel="next"')


class HubFiles(Value):
    """A folder of a repository at a branch, tag or commit; ``folder`` ends in a slash or is ''."""

    repository: str
    revision: str
    folder: str

    @property
    def is_at_commit(self) -> bool:
        return _COMMIT.fullmatch(self.revision) is not None

    @property
    def revision_address(self) -> str:
        return f"{HUB}/api/datasets/{self.repository}/revision/{quote(self.revision, safe='')}"

    @property
    def tree_address(self) -> str:
        folder = quote(f"/{self.folder}".rstrip("/"))
        revision = quote(self.revision, safe="")
        return f"{HUB}/api/datasets/{self.repository}/tree/{revision}{folder}"


def hub_files(data_set: DataSet) -> HubFiles | None:
    """Return a data set's place on Hugging Face; None where its files are elsewhere."""
    found = _FILES.fullmatch(urlsplit(data_set.base_url).path)
    if found is None or not data_set.base_url.startswith(HUB + "/"):
        return None
    repository, revision, folder = found.groups()
    return HubFiles(repository, unquote(revision), unquote(folder))


def commit_of(answer: Any) -> str:
    """The commit that a repository's branch points to; '' where the answer names none."""
    said = answer.get("sha") if isinstance(answer, Mapping) else None
    return said if isinstance(said, str) and _COMMIT.fullmatch(said) else ""


def hashes_in(page: Any, folder: str) -> dict[str, str]:
    """SHA-256 by file name below ``folder``, of a page's files that have one published."""
    found = {}
    for entry in page if isinstance(page, list) else ():
        path = entry.get("path") if isinstance(entry, Mapping) else None
        lfs = entry.get("lfs") if isinstance(entry, Mapping) else None
        oid = lfs.get("oid") if isinstance(lfs, Mapping) else None
        if not isinstance(oid, str) or _SHA256.fullmatch(oid) is None:
            continue
        if isinstance(path, str) and path.startswith(folder):
            found[path.removeprefix(folder)] = oid
    return found


def next_page(link: str) -> str:
    """The address of the next page, by an answer's ``Link`` header; '' where there is none. Only
    its path is taken: it is asked of the same host."""
    found = _NEXT.search(link)
    parts = urlsplit(found[1]) if found is not None else None
    if parts is None or not parts.path.startswith("/api/datasets/"):
        return ""
    return f"{HUB}{parts.path}?{parts.query}"


def hub_files_of(data_set: DataSet, hashes: Mapping[str, str]) -> dict[str, str]:
    """Those of a data set's own files, in its order."""
    names = [*data_set.shard_names(), *([data_set.validation] if data_set.validation else [])]
    return {name: hashes[name] for name in names if name in hashes}


def listing_sha256(hashes: Mapping[str, str]) -> str:
    """One hash that stands for those of all files; '' for none."""
    said = "".join(f"{name} {sha256}\n" for name, sha256 in hashes.items())
    return hashlib.sha256(said.encode()).hexdigest() if said else ""


def files_at_commit(data_set: DataSet, commit: str, listing: str) -> DataSet:
    """The data set at one commit, whose files' hashes have the hash ``listing``."""
    there = hub_files(data_set)
    assert there is not None
    base = f"{HUB}/datasets/{there.repository}/resolve/{commit}/{quote(there.folder)}"
    return replace(data_set, base_url=base, listing=listing)


# Named data sets: where a corpus lies, in which files, and about how large they are.
#
# ``parse_data_set`` reads the mapping of a ``model/datasets/*.toml`` file. Everything here is a
# value: fetching is done by the trainer's ``model.prepare``, on the machine that trains.

PUZZLES = "puzzles"
GENERATED_LAYOUTS = ("generated", "sudoku")
"""Layouts that are made from the seed alone."""
LAYOUTS = (
    "parquet", "jsonl", "gpt2", "text", PUZZLES, *GENERATED_LAYOUTS, "python-stdlib", "chat",
)  # fmt: skip
"""parquet and jsonl: one document a row; gpt2: token files of llm.c; text: one document a file;
puzzles: a table of questions and answers; generated, sudoku: by a formula; python-stdlib: the
running Python's own sources; chat: conversations by a formula, for a chat phase."""

WHOLE_LAYOUTS = ("text", "python-stdlib", "chat")
"""Layouts that are prepared as one whole folder: small, and split by a fraction."""

ENV_HOSTS = ENV_DATA_HOSTS
"""``host=base`` pairs with spaces between: where a host's files are really fetched from."""

TOKEN_OF_HOST: Mapping[str, str] = {"huggingface.co": "HF_TOKEN"}
"""The environment variable whose token lifts a host's rate limits, and is sent to it alone."""

GPT2_BPE_URL = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/vocab.bpe"
"""GPT-2's merges, which its whole vocabulary follows from."""
GPT2_BPE_SHA256 = "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"
"""As published in OpenAI's tiktoken (tiktoken_ext/openai_public.py)."""

GUIDE_CHARACTERS = "0123456789+-HBL.\n"
"""The alphabet of the character-level guide, in the order of its ids."""

_NUMBER = re.compile(r"\{:0?\d*d\}")
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*")


class DataSet(Value):
    """A corpus by its name: files in a fixed order, of one layout, below one address.

    Sizes are averages over the training shards, for plans; 0 is unknown. ``shard_tokens`` is
    counted with the tokenizer that the source's figures are given in, so a smaller vocabulary
    makes more.
    """

    name: str
    title: str
    layout: str
    licence: str = ""
    page: str = ""
    """The address of its public page."""
    base_url: str = ""
    shards: str = ""
    """A file's name, with ``{:05d}`` where its number stands."""
    first: int = 0
    last: int = 0
    validation: str = ""
    """The file to validate on; empty: a fraction of the text."""
    column: str = "text"
    """parquet: where the text stands."""
    fields: tuple[str, ...] = ("text",)
    """jsonl: the keys whose values make a document, a line feed between them."""
    answer_mark: str = ""
    """jsonl: what stands in the last field before the answer; a row without it, or with an empty
    field, is an error. Empty: rows are texts, and nothing is asked of them."""
    shard_bytes: int = 0
    """Bytes to download."""
    shard_text_bytes: int = 0
    """puzzles: so much of a training shard is used, in lines spread evenly; 0: all."""
    shard_tokens: int = 0
    tokenizer_shards: int = 1
    """The number of leading shards that a tokenizer is trained on."""
    tokenizer_text_bytes: int = 256 << 20
    """At most so much text of them is looked at, evenly chosen: with 65,536 ids that took 725 MB of
    memory and 111 s of one core, measured on sources and documentation, 2026-11-22."""
    validation_text_bytes: int = 32 << 20
    """At most so much of the validation file's beginning is used."""
    sha256: Mapping[str, str] = field(default_factory=dict)
    """By file name, for those whose hash is known."""
    listing: str = ""
    """SHA-256 of the files' hashes as their host published them to the launching machine: see
    ``hub``. Whoever fetches the files asks for those hashes again and holds them to it."""

    @property
    def is_whole(self) -> bool:
        """Whether it is prepared as one whole folder, as a private text is."""
        return self.layout in WHOLE_LAYOUTS

    @property
    def is_generated(self) -> bool:
        """Whether it is made from the seed alone."""
        return self.layout in GENERATED_LAYOUTS

    @property
    def is_remote(self) -> bool:
        """Whether there is anything to download."""
        return bool(self.base_url)

    @property
    def shard_count(self) -> int:
        """Training shards."""
        return self.last - self.first + 1 if self.shards else 0

    @property
    def tokens(self) -> int:
        """About how many training tokens there are; 0 where that is unknown."""
        return max(self.shard_count, 1) * self.shard_tokens

    def shard_names(self) -> Iterator[str]:
        """The training shards' file names, in the order in which they are read."""
        if self.shards:
            yield from (self.shards.format(number) for number in range(self.first, self.last + 1))

    def is_shard(self, file: str) -> bool:
        """Whether it is among ``shard_names``, of which there may be thousands."""
        number = _NUMBER.search(self.shards)
        if number is None:
            return bool(self.shards) and file == self.shards
        digits = file[number.start() : len(file) - len(self.shards) + number.end()]
        return (
            len(file) <= len(self.shards.format(self.last))
            and digits.isdecimal()
            and self.first <= int(digits) <= self.last
            and file == self.shards.format(int(digits))
        )

    def address(self, file: str) -> str:
        return self.base_url + file

    def shards_for(self, tokens: int) -> int:
        """About how many shards hold ``tokens``: all of them at most, one at least."""
        if self.shard_tokens <= 0:
            return self.shard_count
        return max(1, min(self.shard_count, -(-tokens // self.shard_tokens)))

    def download_bytes(self, tokens: int) -> int:
        """About what is downloaded for ``tokens``, the validation file included."""
        if not self.is_remote:
            return 0
        wanted = max(self.shards_for(tokens), min(self.tokenizer_shards, self.shard_count))
        return (wanted + bool(self.validation)) * self.shard_bytes

    def disk_bytes(self, tokens: int) -> int:
        """About the room that ``tokens`` take: token files, and downloads not yet worked off."""
        ready = max(1, self.shards_for(tokens)) * max(self.shard_tokens, 1) * 2
        return ready + self.download_bytes(tokens)

    def to_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "fields": list(self.fields)}


def parse_data_set(content: Mapping[str, Any], where: str) -> DataSet:
    """A data set from the mapping of its TOML file, or from ``to_json``.

    Raises:
        UsageError: naming the key at fault and the nearest one that exists.
    """
    declared = {each.name: each for each in dataclasses.fields(DataSet)}
    values: dict[str, Any] = {}
    for key, value in content.items():
        if key not in declared:
            near = nearest(key, declared, likeness=0.5)
            raise UsageError(
                f"unknown key {key!r}",
                where=where,
                next_step=f"did you mean {near!r}?" if near else f"one of: {', '.join(declared)}",
            )
        values[key] = _typed(key, str(declared[key].type), value, where)
    for key in ("name", "title", "layout"):
        if not values.get(key):
            raise UsageError(f"the data set has no {key!r}", where=where)
    made = DataSet(**values)
    _check(made, where)
    return made


def parse_hosts(text: str) -> dict[str, str]:
    """The pairs of ``TRMCLOUD_DATA_HOSTS``.

    Raises:
        UsageError: a pair that is not ``host=base`` with an http address for a base.
    """
    hosts = {}
    for pair in text.split():
        host, equals, base = pair.partition("=")
        if not equals or not host or urlsplit(base).scheme not in ("http", "https"):
            raise UsageError(
                f"{pair!r} must have the form host=base",
                where=ENV_HOSTS,
                next_step=f'{ENV_HOSTS}="huggingface.co=https://mirror.example.org"',
            )
        hosts[host.lower()] = base.rstrip("/")
    return hosts


def rehosted(address: str, hosts: Mapping[str, str]) -> str:
    """Return the address that replaces ``address`` where its host has a mirror."""
    parts = urlsplit(address)
    base = hosts.get(parts.netloc.lower())
    if base is None:
        return address
    query = f"?{parts.query}" if parts.query else ""
    return f"{base}{parts.path}{query}"


def is_address(source: str) -> bool:
    return source.startswith(("http://", "https://"))


def layout_of(name: str) -> str:
    """The layout that a file's ending stands for."""
    lowered = name.lower()
    for ending, layout in ((".parquet", "parquet"), (".jsonl", "jsonl"), (".bin", "gpt2")):
        if lowered.endswith(ending):
            return layout
    return "text"


def one_file(address: str) -> DataSet:
    """The data set that a bare address stands for: one file, its end for validation.

    Raises:
        UsageError: the address ends in no plain file name.
    """
    path = urlsplit(address).path
    base, _, file = path.rpartition("/")
    if not _FILE.fullmatch(file) or urlsplit(address).query:
        raise UsageError(
            "the address does not end in a file's name",
            where=address,
            next_step="give one file: https://host/path/file.parquet (or .jsonl, .bin, .txt)",
        )
    return DataSet(
        name=address,
        title=address,
        layout=layout_of(file),
        base_url=address[: len(address) - len(path)] + base + "/",
        shards=file,
    )


def nearest_name(name: str, names: list[str]) -> str:
    """Return a suggestion for a name that no data set has."""
    return suggest_name(name, sorted(names))


def _typed(key: str, kind: str, value: Any, where: str) -> Any:
    def wrong(wanted: str) -> UsageError:
        return UsageError(f"{key} takes {wanted}, not {value!r}", where=where)

    if kind == "str":
        if not isinstance(value, str):
            raise wrong("text")
        return value
    if kind == "int":
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise wrong("a whole number")
        return value
    if kind.startswith("tuple"):
        if not isinstance(value, list) or not value or not all(isinstance(v, str) for v in value):
            raise wrong("a list of names")
        return tuple(value)
    if not isinstance(value, Mapping) or not all(
        isinstance(each, str) and _SHA256.fullmatch(each) for each in value.values()
    ):
        raise wrong("a table of SHA-256 in lower-case hex")
    return dict(value)


def _check(made: DataSet, where: str) -> None:
    def refuse(what: str) -> None:
        raise UsageError(what, where=where)

    if made.layout not in LAYOUTS:
        refuse(f"layout must be one of {', '.join(LAYOUTS)}, not {made.layout!r}")
    if made.layout in ("python-stdlib", "chat"):
        if made.shards or made.base_url:
            refuse(f"layout {made.layout} has no files of its own")
        return
    if made.is_generated:
        if made.base_url:
            refuse(f"layout {made.layout} has no address")
    else:
        parts = urlsplit(made.base_url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            refuse(f"base_url is not an http address: {made.base_url!r}")
        if not made.base_url.endswith("/") or parts.query:
            refuse("base_url must end in '/' and have no query")
    numbered = len(_NUMBER.findall(made.shards))
    if numbered > 1 or not _FILE.fullmatch(_NUMBER.sub("0", made.shards)):
        refuse(f"shards must be a file name with at most one {{:05d}}, not {made.shards!r}")
    if made.last < made.first or (made.last > made.first and not numbered):
        refuse(f"shards {made.first} to {made.last} of {made.shards!r} are not a list")
    if made.validation and not _FILE.fullmatch(made.validation):
        refuse(f"validation must be a file name, not {made.validation!r}")
    if made.is_shard(made.validation):
        refuse(f"{made.validation} is among the shards to train on")
    if made.layout not in WHOLE_LAYOUTS and made.shard_count > 1 and not made.validation:
        refuse("a set of several shards needs a validation file")
    if made.is_whole and made.shard_count != 1:
        refuse(f"layout {made.layout} is one file")
    if not 1 <= made.tokenizer_shards <= made.shard_count:
        refuse(f"tokenizer_shards must be from 1 to {made.shard_count}")
    if made.tokenizer_text_bytes < 1 or made.validation_text_bytes < 1:
        refuse("tokenizer_text_bytes and validation_text_bytes must be above zero")
    for name in made.sha256:
        if name != made.validation and not made.is_shard(name):
            refuse(f"a hash is given for {name!r}, which is not one of its files")
