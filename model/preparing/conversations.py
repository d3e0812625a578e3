"""Conversations made ready for training: checked line by line, and divided for validation.

The folder holds the conversations as text, not as ids: a chat phase writes them in the tokenizer of
the weights that it starts from, which may not exist yet (``model.preparing.chat_ids``).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from model.data.chat import Messages, check_messages
from model.preparing import questions
from model.preparing.whole import made_aside
from trmcloud.core.contract.pod_contract import DATA_META_NAME
from trmcloud.core.errors import ConflictError, DataError
from trmcloud.core.spec.settings import CHAT

TRAIN_NAME, VALIDATION_NAME = "train.jsonl", "validation.jsonl"
VERSION = 3
"""Of a folder of conversations as text; versions 1 and 2 are ids."""

Progress = Callable[[str, int, int], None]
_TELL_EVERY = 10_000
_SPACE = 1 << 64


def prepare_conversations(
    source: str,
    out: Path,
    fraction: float,
    *,
    is_generated: bool = False,
    progress: Progress = lambda stage, done, total: None,
) -> dict[str, Any]:
    """Writes ``out`` and returns what its ``meta.json`` says.

    Args:
        source: a file of JSON lines, each ``{"messages": […]}`` or a list of messages; or a folder
            of such files.
        fraction: the share of conversations that is for validation, chosen by their hashes: equal
            ones are on the same side.
        is_generated: they are made by ``questions``, and there is no file.

    Raises:
        DataError: a line is no conversation, or there are fewer than two different ones.
        ConflictError: ``out`` is a folder of something else.
    """
    if out.exists() and not (out / DATA_META_NAME).exists() and any(out.iterdir()):
        raise ConflictError(
            "the folder holds files that are not prepared data",
            where=str(out),
            next_step="name a new folder",
        )
    whole, places, count = hashlib.sha256(), set(), 0
    for line in _lines(source, is_generated=is_generated):
        digest = hashlib.sha256(line).digest()
        whole.update(digest)
        places.add(int.from_bytes(digest[:8]))
        count += 1
        if count % _TELL_EVERY == 0:
            progress("scan", count, 0)
    if len(places) < 2:
        raise DataError(
            "it has no conversations"
            if not places
            else "all its conversations are the same, so none is left for validation",
            where=source,
            next_step='give JSON lines: {"messages": [{"role": "user", "content": …}, …]}',
        )
    # One at least on either side.
    ordered = sorted(places)
    held_out = min(max(1, sum(each < fraction * _SPACE for each in ordered)), len(ordered) - 1)
    limit = ordered[held_out]
    try:
        with made_aside(out) as making:
            counts, sizes = [0, 0], [0, 0]
            hashes = [hashlib.sha256(), hashlib.sha256()]
            names = (TRAIN_NAME, VALIDATION_NAME)
            with (
                open(making / TRAIN_NAME, "wb") as train,
                open(making / VALIDATION_NAME, "wb") as held,
            ):
                for line in _lines(source, is_generated=is_generated):
                    place = int.from_bytes(hashlib.sha256(line).digest()[:8])
                    side = int(place < limit)
                    (train, held)[side].write(line + b"\n")
                    hashes[side].update(line + b"\n")
                    counts[side] += 1
                    sizes[side] += len(line) + 1
                    if sum(counts) % _TELL_EVERY == 0:
                        progress("write", sum(counts), count)
            meta = {
                "version": VERSION,
                CHAT: True,
                "source": source,
                "source_sha256": whole.hexdigest(),
                "conversations": counts[0],
                "validation_conversations": counts[1],
                "train_bytes": sizes[0],
                "validation_bytes": sizes[1],
                "files": {
                    name: digest.hexdigest() for name, digest in zip(names, hashes, strict=True)
                },
            }
            (making / DATA_META_NAME).write_text(
                json.dumps(meta, indent=1) + "\n", encoding="utf-8"
            )
    except OSError as error:
        raise DataError(
            f"the conversations cannot be written: {error.strerror or error}", where=str(out)
        ) from None
    return meta


def read_conversations(source: str) -> Iterator[Messages]:
    """Every conversation of a file, or of a folder's ``.jsonl`` files, in order.

    Raises:
        DataError: naming the file and the line at fault.
    """
    path = Path(source)
    files = [path]
    if path.is_dir():
        files = sorted(each for each in path.iterdir() if each.suffix == ".jsonl")
        if not files:
            raise DataError("the folder has no .jsonl file", where=source)
    for file in files:
        try:
            with open(file, "rb") as lines:
                for number, line in enumerate(lines, 1):
                    if line.strip():
                        yield _conversation(line, f"{file}, line {number}")
        except OSError as error:
            raise DataError(
                f"the conversations cannot be read: {error.strerror}", where=str(file)
            ) from None


def _lines(source: str, *, is_generated: bool) -> Iterator[bytes]:
    """Each conversation as one line of JSON, without its end."""
    every = questions.conversations() if is_generated else read_conversations(source)
    for messages in every:
        yield json.dumps({"messages": messages}, ensure_ascii=False).encode()


def _conversation(line: bytes, where: str) -> Messages:
    try:
        said = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"the line is not JSON: {error}", where=where) from None
    messages = said.get("messages") if isinstance(said, dict) else said
    if messages is None:
        raise DataError("the line has no messages", where=where)
    check_messages(messages, where, is_trained_on=True)
    given: Messages = [_plain(message) for message in messages]
    try:
        json.dumps(given, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise DataError("the line has half of a surrogate pair", where=where) from None
    return given


def _plain(message: Any) -> dict[str, Any]:
    """A message without what is no part of a conversation."""
    content = message["content"]
    if isinstance(content, list):
        content = [{"type": part["type"], "text": part["text"]} for part in content]
    return {"role": message["role"], "content": content}
