"""GPT-2's own vocabulary, and the token files that llm.c and modded-nanogpt read."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from model.preparing.errors import DamagedFile
from trmcloud.core.errors import DataError

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
        raise DataError(f"this is no list of merges: {error}", where=where) from None
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
    """How many tokens a token file holds.

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
        raise DamagedFile("this is no file of GPT-2 tokens", where=str(path))
    tokens = int(head[2])
    if tokens < 0 or size != HEADER_BYTES + 2 * tokens:
        raise DamagedFile(
            f"the file says {tokens:,} tokens and has {size:,} bytes", where=str(path)
        )
    return tokens
