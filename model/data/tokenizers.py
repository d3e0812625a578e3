"""Text to token ids and back: byte-level BPE, or one id per character.

Both know how many bytes of text each id stands for, so that a loss in nats per token becomes bits
per byte, and both have one special id that stands before every document: ``<|bos|>``, or GPT-2's
``<|endoftext|>``. Byte pairs may have further ones, for conversations: see ``model.data.chat``.
None is text: zero bytes, never produced from a text that happens to spell it, left out of bits per
byte.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from trmcloud.core.errors import DataError
from trmcloud.core.spec.settings import BYTE_PAIRS, CHAT_BYTE_PAIRS

BOS = "<|bos|>"
CHAT_TOKENS = (
    BOS,
    "<|user_start|>",
    "<|user_end|>",
    "<|assistant_start|>",
    "<|assistant_end|>",
    "<|python_start|>",
    "<|python_end|>",
    "<|output_start|>",
    "<|output_end|>",
)
"""The special tokens of conversations: see ``model.data.chat``."""
END_OF_TEXT = "<|endoftext|>"
_KIND = "trmcloud-char"
_KIND_WITHIN = 100
_LARGEST_CODE_POINT = 0x110000

Ids = npt.NDArray[np.uint32]


class TextTokenizer(Protocol):
    """The interface of a tokenizer to preparing, training and sampling."""

    @property
    def kind(self) -> str: ...

    @property
    def vocab_size(self) -> int:
        """Ids run from 0 to ``vocab_size`` − 1, special ones included."""

    @property
    def bos(self) -> int: ...

    def special_id(self, name: str) -> int | None:
        """The id of a special token; None where there is none of that name."""

    def encode(self, texts: Sequence[str], places: Sequence[str]) -> list[Ids]:
        """The ids of each text; ``places`` say where each one stands, for an error.

        Raises:
            DataError: a character that the vocabulary lacks, named with its position.
        """

    def encode_documents(self, texts: Sequence[str], place: str) -> Ids:
        """The ids of all the texts, one after another, each behind the special id.

        Raises:
            DataError: a character that the vocabulary lacks.
        """

    def decode(self, ids: Iterable[int]) -> str:
        """Text; special ids give none, cut UTF-8 sequences give U+FFFD."""

    def byte_lengths(self) -> npt.NDArray[np.int64]:
        """(vocab_size,) bytes of UTF-8 that each id stands for; 0 for special ids."""

    def to_json(self) -> str: ...


class BpeTokenizer:
    """Byte-level byte-pair encoding: every text can be written, nothing is unknown."""

    kind = "bpe"

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        # A setting that the file does not carry: spelled-out special tokens are plain text.
        self._inner.encode_special_tokens = True
        bos = inner.token_to_id(BOS)
        if bos is None:
            bos = inner.token_to_id(END_OF_TEXT)
        if bos is None:
            raise DataError(f"the tokenizer has no {BOS} token")
        self._bos = int(bos)
        self._special = {
            str(token.content): int(index)
            for index, token in inner.get_added_tokens_decoder().items()
            if token.special
        }

    @classmethod
    def train(
        cls, texts: Iterable[str], vocab_size: int, special_tokens: Sequence[str] = (BOS,)
    ) -> BpeTokenizer:
        """A tokenizer of ``vocab_size`` ids, or fewer where the texts have too few pairs. The
        special ones are its first."""
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

        inner = Tokenizer(models.BPE())
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=list(special_tokens),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        inner.train_from_iterator(texts, trainer)
        return cls(inner)

    @property
    def vocab_size(self) -> int:
        return int(self._inner.get_vocab_size())

    @property
    def bos(self) -> int:
        return self._bos

    def special_id(self, name: str) -> int | None:
        return self._special.get(name)

    def encode(self, texts: Sequence[str], places: Sequence[str]) -> list[Ids]:
        encoded = self._inner.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(each.ids, dtype=np.uint32) for each in encoded]

    def encode_documents(self, texts: Sequence[str], place: str) -> Ids:
        # One list for all: an array a document costs more than encoding a short one does.
        flat: list[int] = []
        for each in self._inner.encode_batch_fast(list(texts), add_special_tokens=False):
            flat.append(self._bos)
            flat += each.ids
        return np.array(flat, dtype=np.uint32)

    def decode(self, ids: Iterable[int]) -> str:
        return str(self._inner.decode([int(i) for i in ids], skip_special_tokens=True))

    def byte_lengths(self) -> npt.NDArray[np.int64]:
        # In the byte-level alphabet one character stands for one byte. A special id has none.
        lengths = np.zeros(self.vocab_size, dtype=np.int64)
        for token, index in self._inner.get_vocab().items():
            lengths[index] = len(token)
        lengths[[self._bos, *self._special.values()]] = 0
        return lengths

    def to_json(self) -> str:
        return str(self._inner.to_str())


class CharTokenizer:
    """One id per character, in code point order; ``<|bos|>`` is the last id."""

    kind = "char"

    def __init__(self, characters: str) -> None:
        self._points = np.array([ord(each) for each in characters], dtype=np.int64)
        self._characters = characters
        self._lookup = np.full(_LARGEST_CODE_POINT, -1, dtype=np.int32)
        self._lookup[self._points] = np.arange(len(characters))

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int) -> CharTokenizer:
        """The characters of ``texts``.

        Raises:
            DataError: more different characters than ``vocab_size`` has room for.
        """
        seen: set[str] = set()
        for text in texts:
            seen.update(text)
        if len(seen) + 1 > vocab_size:
            raise DataError(
                f"the text has {len(seen)} different characters and one id is special, "
                f"but the vocabulary has {vocab_size} ids",
                next_step=f"--set vocab_size={len(seen) + 1}, or --set tokenizer=bpe",
            )
        return cls("".join(sorted(seen)))

    @property
    def vocab_size(self) -> int:
        return len(self._characters) + 1

    @property
    def bos(self) -> int:
        return len(self._characters)

    def special_id(self, name: str) -> int | None:
        return self.bos if name == BOS else None

    def encode(self, texts: Sequence[str], places: Sequence[str]) -> list[Ids]:
        return [self._encode(text, place) for text, place in zip(texts, places, strict=True)]

    def encode_documents(self, texts: Sequence[str], place: str) -> Ids:
        bos = np.array([self.bos], dtype=np.uint32)
        parts = [part for text in texts for part in (bos, self._encode(text, place))]
        return np.concatenate(parts) if parts else np.zeros(0, np.uint32)

    def decode(self, ids: Iterable[int]) -> str:
        return "".join(self._characters[int(i)] for i in ids if int(i) < len(self._characters))

    def byte_lengths(self) -> npt.NDArray[np.int64]:
        return np.array([*(len(each.encode()) for each in self._characters), 0], dtype=np.int64)

    def to_json(self) -> str:
        content = {"kind": _KIND, "characters": self._characters, "special_tokens": [BOS]}
        return json.dumps(content, indent=1) + "\n"

    def _encode(self, text: str, place: str) -> Ids:
        points = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
        ids = self._lookup[points]
        if len(ids) and ids.min() < 0:
            at = int(np.argmax(ids < 0))
            line = text.count("\n", 0, at) + 1
            column = at - (text.rfind("\n", 0, at) + 1) + 1
            raise DataError(
                f"the tokenizer has no character {text[at]!r} (U+{int(points[at]):04X}), "
                f"found at character {at}, line {line}, column {column}",
                where=place,
                next_step="remove it from the text, or train a tokenizer on text that has it",
            )
        return ids.astype(np.uint32)


def train_tokenizer(
    kind: str, texts: Iterable[str], vocab_size: int, characters: str = ""
) -> TextTokenizer:
    """A tokenizer of ``kind`` ``bpe``, ``bpe-chat`` or ``char`` for these texts, or for these
    ``characters``."""
    if characters:
        return CharTokenizer(characters)
    if kind == "char":
        return CharTokenizer.train(texts, vocab_size)
    return BpeTokenizer.train(texts, vocab_size, _special_tokens(kind))


def _special_tokens(kind: str) -> Sequence[str]:
    return CHAT_TOKENS if kind == CHAT_BYTE_PAIRS else (BOS,)


def is_as_trained(text: str, kind: str, vocab_size: int) -> bool:
    """Whether a ``tokenizer.json`` that others made is what ``train_tokenizer`` may have made of
    some text: byte-level BPE of at most so many ids, which differs in its vocabulary and merges
    alone and has every byte, so that no text is lost or changed and each id stands for as many
    bytes as ``byte_lengths`` says. One id per character is learnt again at no cost: never."""
    from tokenizers import pre_tokenizers

    if kind not in BYTE_PAIRS:
        return False
    special = _special_tokens(kind)
    try:
        empty = BpeTokenizer.train([], 256 + len(special), special)
        content, plain = json.loads(text), json.loads(empty.to_json())
        vocab = content["model"].pop("vocab")
        content["model"].pop("merges")
        plain["model"].pop("vocab")
        plain["model"].pop("merges")
        alphabet = set(pre_tokenizers.ByteLevel.alphabet())
        return (
            content == plain
            and len(vocab) <= vocab_size
            and sorted(vocab.values()) == list(range(len(vocab)))
            and alphabet < set(vocab)
            and all(set(token) <= alphabet for token in vocab if token not in special)
            and load_tokenizer(text, "").vocab_size == len(vocab)
        )
    except (DataError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False


def load_tokenizer(text: str, where: str) -> TextTokenizer:
    """The tokenizer of a ``tokenizer.json``.

    Raises:
        DataError: the text is none.
    """
    from tokenizers import Tokenizer

    try:
        # A large vocabulary is parsed by its library alone.
        content = json.loads(text) if _KIND in text[:_KIND_WITHIN] else None
        if isinstance(content, dict) and content.get("kind") == _KIND:
            characters = content["characters"]
            if not isinstance(characters, str) or len(set(characters)) != len(characters):
                raise ValueError("its characters are not a text in which each stands once")
            return CharTokenizer(characters)
        return BpeTokenizer(Tokenizer.from_str(text))
    except DataError as error:
        raise DataError(error.what, where=where) from None
    except Exception as error:  # the library raises bare Exception for what it cannot parse
        raise DataError(f"this is not a tokenizer: {error}", where=where) from None
