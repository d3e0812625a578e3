"""What a data set is made of, and GPT-2's own byte pairs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from model.preparing.fetch import DamagedFile
from model.preparing.sources import PYTHON_STDLIB
from trmcloud.core.catalog.datasets import (
    DataSet,
    is_address,
    layout_of,
    nearest_name,
    one_file,
    parse_data_set,
)
from trmcloud.core.errors import DataError, UsageError

# GPT-2's own vocabulary, and the token files that llm.c and modded-nanogpt read.

END_OF_TEXT = "<|endoftext|>"
HEADER_BYTES = 1024
_MAGIC, _VERSION = 20240520, 1


def is_merges(text: str) -> bool:
    """Whether a text is a list of merges (``vocab.bpe``, ``merges.txt``)."""
    return text.startswith("#version:")


def tokenizer_from_merges(text: str, where: str) -> str:
    """``tokenizer.json`` of the byte-level BPE whose merges stand in ``text``.

    The vocabulary follows from them as GPT-2 made it: 256 bytes, printable ones first, then one id
    a merge, then ``<|endoftext|>``, which stands before every document.

    Raises:
        DataError: it is no list of merges.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    lines = [line for line in text.split("\n")[1:] if line]
    pairs = [(first, second) for first, _, second in (line.partition(" ") for line in lines)]
    vocabulary: dict[str, int] = {}
    for token in (*_byte_letters(), *("".join(pair) for pair in pairs), END_OF_TEXT):
        vocabulary[token] = len(vocabulary)
    try:
        inner = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs))
    except Exception as error:  # the library raises bare Exception
        raise DataError(f"this is not a list of merges: {error}", where=where) from None
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([AddedToken(END_OF_TEXT, special=True)])
    return str(inner.to_str())


def _byte_letters() -> list[str]:
    """The letter that stands for each byte, in the order of GPT-2's first 256 ids."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in printable]
    return [*(chr(byte) for byte in printable), *(chr(256 + at) for at in range(len(rest)))]


def is_token_file(path: Path) -> bool:
    """Whether a file begins as a token file does."""
    try:
        with open(path, "rb") as file:
            return file.read(4) == _MAGIC.to_bytes(4, "little")
    except OSError:
        return False


def count_tokens(path: Path) -> int:
    """Return the number of tokens in a token file.

    Raises:
        DataError: it is none, or is cut.
    """
    try:
        with open(path, "rb") as file:
            head = np.frombuffer(file.read(HEADER_BYTES), dtype="<i4")
        size = path.stat().st_size
    except (OSError, ValueError):
        head, size = np.zeros(0, "<i4"), 0
    if len(head) != 256 or head[0] != _MAGIC or head[1] != _VERSION:
        raise DamagedFile("this is not a file of GPT-2 tokens", where=str(path))
    tokens = int(head[2])
    if tokens < 0 or size != HEADER_BYTES + 2 * tokens:
        raise DamagedFile(
            f"the file claims {tokens:,} tokens but has {size:,} bytes", where=str(path)
        )
    return tokens


# What a SOURCE stands for: a named data set, one address, or files of this machine.

DATA_SETS = Path(__file__).parents[1] / "datasets"
_SHARD_LAYOUTS = ("parquet", "gpt2")
"""Of files of this machine; every other kind of file is taken for text, as it always was, but for
JSONL where a row of training is to be one text."""


@dataclass(frozen=True)
class ShardFile:
    """One file of a corpus: at an address, on this machine, or made by a formula (neither)."""

    name: str
    address: str = ""
    path: Path | None = None
    sha256: str = ""

    @property
    def identity(self) -> str:
        """The file's identity, known before any of it was read."""
        if self.path is not None:
            stat = self.path.stat()
            return f"{self.path} {stat.st_size} {stat.st_mtime_ns}"
        return f"{self.address or self.name} {self.sha256}"


@dataclass(frozen=True)
class Corpus:
    """Files to be worked off in their order. ``validation`` None: a share of the only file."""

    source: str
    data_set: DataSet
    train: tuple[ShardFile, ...]
    validation: ShardFile | None

    @property
    def layout(self) -> str:
        return self.data_set.layout

    def sha256(self, seed: int) -> str:
        """Of all that says which text it is; not of the text, which is still to come."""
        said: dict[str, Any] = {"layout": self.layout}
        if self.data_set.is_generated:
            said["seed"] = seed
        files = (*self.train, *((self.validation,) if self.validation else ()))
        said["files"] = [
            [file.name, file.path.stat().st_size if file.path else file.address, file.sha256]
            for file in files
        ]
        said["column"], said["fields"] = self.data_set.column, list(self.data_set.fields)
        said["validation"] = [bool(self.validation), self.data_set.validation_text_bytes]
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def data_set_names() -> list[str]:
    return sorted(path.stem for path in DATA_SETS.glob("*.toml"))


def load_data_set(name: str) -> DataSet:
    """
    Raises:
        UsageError: the file is no data set.
    """
    path = DATA_SETS / f"{name}.toml"
    return parse_data_set(_toml(path), str(path))


def find_data_set(source: str, given: Path | None = None) -> DataSet | None:
    """The data set that ``source`` means; None where it is text of this machine.

    Args:
        given: a file with the data set itself, as JSON.

    Raises:
        DataError: there is nothing of that name.
        UsageError: an address without a file's name, or a file that is no data set.
    """
    if given is not None:
        try:
            return parse_data_set(json.loads(given.read_text(encoding="utf-8")), str(given))
        except (OSError, ValueError, AttributeError) as error:
            raise UsageError(f"the data set cannot be read: {error}", where=str(given)) from None
    if is_address(source):
        return one_file(source)
    if source == PYTHON_STDLIB:
        return None
    if source in data_set_names():
        return load_data_set(source)
    path = Path(source)
    if source and not path.exists() and "/" not in source and not path.suffix:
        near = nearest_name(source, data_set_names())
        raise DataError(
            "there is no data set with this name, and no such file", where=source, next_step=near
        )
    return None


def named_corpus(source: str, data_set: DataSet) -> Corpus:
    """The files of a data set."""

    def file(name: str) -> ShardFile:
        address = data_set.address(name) if data_set.is_remote else ""
        return ShardFile(name, address, sha256=data_set.sha256.get(name, ""))

    return Corpus(
        source,
        data_set,
        tuple(file(name) for name in data_set.shard_names()),
        file(data_set.validation) if data_set.validation else None,
    )


def local_corpus(source: str, *, by_rows: bool = False, like: str = "") -> Corpus | None:
    """The corpus of a parquet or token file, or of a folder of such files, the last one of which is
    for validation; None for anything else.

    Args:
        by_rows: lines of JSON are texts, too.
        like: the data set whose fields they have, where it is one of lines of JSON.

    Raises:
        DataError: a folder of files of several kinds.
    """
    path = Path(source)
    layouts = (*_SHARD_LAYOUTS, "jsonl") if by_rows else _SHARD_LAYOUTS

    def kind_of(file: Path) -> str:
        layout = layout_of(file.name) if file.is_file() else ""
        # Many things end in .bin; what is not GPT-2's tokens is told off as text.
        return "" if layout == "gpt2" and not is_token_file(file) else layout

    if path.is_dir():
        files = sorted(each for each in path.iterdir() if not each.name.startswith("."))
        kinds = {kind_of(each) for each in files}
        if not kinds or not kinds <= set(layouts):
            return None
        if len(kinds) > 1:
            told = " and ".join(sorted(kinds)).replace("gpt2", "token")
            raise DataError(f"the folder holds {told} files of both kinds", where=source)
    else:
        files, kinds = [path], {kind_of(path)}
        if not kinds <= set(layouts):
            return None
    shards = tuple(ShardFile(each.name, path=each.absolute()) for each in files)
    data_set = DataSet(
        name=source,
        title=source,
        layout=kinds.pop(),
        shard_bytes=sum(each.stat().st_size for each in files) // len(files),
        tokenizer_shards=max(1, min(8, len(shards) - 1)),
    )
    if data_set.layout == "jsonl" and like in data_set_names():
        named = load_data_set(like)
        data_set = replace(data_set, fields=named.fields, answer_mark=named.answer_mark)
    if len(shards) == 1:
        return Corpus(source, data_set, shards, None)
    return Corpus(source, data_set, shards[:-1], shards[-1])


def one_file_corpus(source: str, layout: str) -> Corpus:
    """The corpus of one file of this machine, a share of which is for validation.

    Raises:
        DataError: it is no file.
    """
    path = Path(source)
    if not path.is_file():
        raise DataError(
            "the training data is not one file",
            where=source or "--source",
            next_step=f"give one file of {layout}, or a data set by its name",
        )
    file = ShardFile(path.name, path=path.absolute())
    size = path.stat().st_size
    data_set = DataSet(name=source, title=source, layout=layout, shard_bytes=size, shards=path.name)
    return Corpus(source, data_set, (file,), None)


def with_column(corpus: Corpus, column: str) -> Corpus:
    """Its text in another column, or under another key."""
    if not column:
        return corpus
    data_set = replace(corpus.data_set, column=column, fields=tuple(column.split(",")))
    return replace(corpus, data_set=data_set)


def check_parts(corpus: Corpus | None, source: str) -> None:
    """
    Raises:
        DataError: its texts are no questions with worked answers.
    """
    if corpus is None or not corpus.data_set.answer_mark or len(corpus.data_set.fields) < 2:
        raise DataError(
            "rows=segments needs questions with worked answers, such as gsm8k",
            where=source,
            next_step="--data gsm8k, or a .jsonl file with its fields question and answer",
        )


def _toml(path: Path) -> Mapping[str, Any]:
    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10
        raise UsageError(
            "reading data sets by name needs Python 3.11",
            where=str(path),
            next_step="give the data set itself with --data-set FILE",
        ) from None
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"the data set cannot be read: {error}", where=str(path)) from None
