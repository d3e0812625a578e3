"""Hostile variants of real text: bytes that are flipped, cut and doubled, and JSON whose values
are replaced by those that readers trip over. The same text and seed give the same variants."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

#: As they stand in JSON text.
NASTY = (
    "9" * 5000, "-" + "9" * 5000, "1e400", "-1e400", "NaN", "Infinity", "-Infinity", "-1", "-0",
    "1e299", "9223372036854775807", "9223372036854775808", "0.1", "1." + "1" * 5000, "true",
    "false", "null", '""', '"a/b"', '"../../x"', '"\\u0000"', '"\\ud800"', '"\\udfff\\ud83d"',
    '"\\u001b]0;x\\u0007\\u001b[2J\\u202e\\r\\n"', '"' + "x" * 70_000 + '"', "[]", "{}", "[[]]",
    "[" * 3000, "[" * 500 + "]" * 500, '{"a":' * 500 + "1" + "}" * 500, "[" + "0," * 9000 + "0]",
    '["a", 1, null]', '{"a": 1, "a": 2}', '"1"', "1", "2", '"\\u00b2"', '"\\u0663"', '"nan"',
    '"9999-12-31T23:59:59Z"', '"0001-01-01T00:00:00+14:00"', '"2026-11-22"',
)  # fmt: skip
_BYTES = (
    b"", b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\xc2\xb2", b"\xd9\xa3", b"\r\n",
    b"\x1b[2J", b"\x9b31m", b'"', b"{", b"}", b"[" * 200_000, b"9" * 5000, b" ", b"\n" * 50_000,
    b"-1", b"1e400", b"\\ud800", b"a/b",
)  # fmt: skip


@contextmanager
def briefly(seconds: float = 5.0) -> Iterator[None]:
    """Fail where the block takes longer than a reader of a large input may."""
    began = time.process_time()
    yield
    assert time.process_time() - began < seconds


_HERE = "@@here@@"
_MOST_NASTY = 6


def variants(text: bytes, count: int, seed: int = 0) -> Iterator[bytes]:
    """``count`` variants of ``text``; of JSON half are made of its values, the others of bytes."""
    rng = random.Random(f"{seed}/{len(text)}")
    try:
        tree = json.loads(text)
    except ValueError:
        tree = None
    for number in range(count):
        if isinstance(tree, (dict, list)) and number % 2:
            yield _values(tree, rng)
        else:
            yield _bytes(text, rng)


def _values(tree: Any, rng: random.Random) -> bytes:
    tree = json.loads(json.dumps(tree))
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        places = list(_places(tree))
        if not places:
            break
        holder, key = rng.choice(places)
        what = rng.random()
        if what < 0.15:
            del holder[key]
        elif what < 0.25 and isinstance(holder, list):
            holder.extend([holder[key]] * rng.choice((1, 3, 5000)))
        elif what < 0.35:
            other, at = rng.choice(places)
            holder[key] = json.loads(json.dumps(other[at]))
        else:
            holder[key] = _HERE
    text = json.dumps(tree)
    first, *rest = text.split(f'"{_HERE}"')
    made = [first]
    for number, part in enumerate(rest):
        made += [rng.choice(NASTY) if number < _MOST_NASTY else "0", part]
    return "".join(made).encode("utf-8", "surrogatepass")


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    keys = list(tree) if isinstance(tree, dict) else range(len(tree))
    for key in keys:
        yield tree, key
        if isinstance(tree[key], (dict, list)):
            yield from _places(tree[key])


def _bytes(text: bytes, rng: random.Random) -> bytes:
    made = bytearray(text)
    for _ in range(rng.choice((1, 1, 2, 5))):
        at, end = sorted((rng.randrange(len(made) + 1), rng.randrange(len(made) + 1)))
        what = rng.randrange(6)
        if what == 0 and made:
            made[at % len(made)] ^= 1 << rng.randrange(8)
        elif what == 1:
            del made[at:end]
        elif what == 2:
            made[at:at] = made[at : min(end, at + 4000)]
        elif what == 3:
            made[at:at] = rng.choice(_BYTES)
        elif what == 4:
            made[at : at + rng.randrange(20)] = rng.choice(NASTY).encode()
        else:
            made[at : at + 1] = rng.randbytes(rng.randrange(8))
    return bytes(made)
