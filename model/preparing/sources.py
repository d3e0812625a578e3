"""The sources of training text: one file, a folder of text files, or Python's own library.

A source is a list of documents in a fixed order. A document is read in pieces, so that a text
larger than memory can be prepared; pieces end after a line break where there is one.
"""

from __future__ import annotations

import codecs
import hashlib
import os
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trmcloud.core.errors import DataError

PYTHON_STDLIB = "python-stdlib"
PIECE_BYTES = 1 << 20

#: What counts as text in a folder; anything else is skipped and counted.
TEXT_SUFFIXES = frozenset(
    (
        ".txt", ".text", ".md", ".markdown", ".rst", ".org", ".tex", ".log", ".srt",
        ".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".xml", ".html", ".htm",
        ".yaml", ".yml", ".toml", ".ini", ".cfg",
        ".py", ".pyi", ".c", ".h", ".cc", ".cpp", ".hpp", ".cs", ".java", ".kt", ".go", ".rs",
        ".js", ".mjs", ".jsx", ".ts", ".tsx", ".rb", ".php", ".pl", ".lua", ".r", ".jl",
        ".hs", ".ml", ".scala", ".swift", ".sh", ".sql", ".css",
    )
)  # fmt: skip
#: Folders of the standard library that are no library: packages installed beside it, and tests
#: with deliberately broken or meaningless sources.
_NOT_STDLIB = frozenset(
    ("site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__", "ensurepip")
)


@dataclass(frozen=True)
class Document:
    """One file: its name within the source, its path, its size when it was listed."""

    name: str
    path: Path
    size_bytes: int


@dataclass(frozen=True)
class Source:
    """Documents in their fixed order; ``whole`` where they are one file given by itself."""

    name: str
    documents: tuple[Document, ...]
    skipped: int
    whole: bool

    @property
    def size_bytes(self) -> int:
        return sum(document.size_bytes for document in self.documents)


def open_source(name: str) -> Source:
    """The documents of ``name``: a file, a folder, or ``python-stdlib``.

    Raises:
        DataError: missing, empty, unreadable, or a single file that is not text.
    """
    if name == PYTHON_STDLIB:
        return _stdlib()
    path = Path(name)
    if not name or not path.exists():
        raise DataError(
            "the training text does not exist",
            where=name or "--source",
            next_step=f"give a text file, a folder of text files, or {PYTHON_STDLIB}",
        )
    if path.is_dir():
        return _folder(path, name)
    document = Document(path.name, path, _size(path))
    if document.size_bytes == 0:
        raise DataError(
            "the training text is empty",
            where=name,
            next_step=f"give a text file, a folder of text files, or {PYTHON_STDLIB}",
        )
    if not is_text(path):
        raise DataError(
            "the training text is not UTF-8 text",
            where=name,
            next_step="convert it to UTF-8, or give a text file",
        )
    return Source(name, (document,), skipped=0, whole=True)


def read_pieces(document: Document) -> Iterator[str]:
    """The document's text in pieces of about a mebibyte, cut after line breaks where possible.

    Raises:
        DataError: unreadable, or not UTF-8, with the byte at fault.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    rest, position = "", 0
    try:
        with open(document.path, "rb") as file:
            while chunk := file.read(PIECE_BYTES):
                rest += decoder.decode(chunk)
                position += len(chunk)
                cut = rest.rfind("\n") + 1
                if cut:
                    yield rest[:cut]
                    rest = rest[cut:]
            rest += decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise DataError(
            f"it is not UTF-8 at or near byte {position + error.start}", where=str(document.path)
        ) from None
    except OSError as error:
        raise _unreadable(document.path, error) from None
    if rest:
        yield rest


def source_sha256(source: Source) -> str:
    """One hash over every document's name and bytes, in order."""
    whole = hashlib.sha256()
    for document in source.documents:
        try:
            one = hashlib.sha256()
            with open(document.path, "rb") as file:
                while chunk := file.read(PIECE_BYTES):
                    one.update(chunk)
        except OSError as error:
            raise _unreadable(document.path, error) from None
        line = f"{document.name}\0{one.hexdigest()}\n"
        whole.update(line.encode("utf-8", "surrogateescape"))
    return whole.hexdigest()


def is_text(path: Path) -> bool:
    """Whether the whole file is UTF-8 without NUL bytes.

    Raises:
        DataError: it cannot be read.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        with open(path, "rb") as file:
            while chunk := file.read(PIECE_BYTES):
                if b"\0" in chunk:
                    return False
                decoder.decode(chunk)
            decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    except OSError as error:
        raise _unreadable(path, error) from None
    return True


def _stdlib() -> Source:
    root = Path(sysconfig.get_paths()["stdlib"])
    documents = [
        Document(path.relative_to(root).as_posix(), path, size)
        for path in sorted(root.rglob("*.py"))
        if not _NOT_STDLIB.intersection(path.relative_to(root).parts)
        and (size := _size(path)) > 0
        and is_text(path)
    ]
    if not documents:
        raise DataError("this Python has no readable standard library", where=str(root))
    return Source(PYTHON_STDLIB, tuple(documents), skipped=0, whole=False)


def _folder(root: Path, name: str) -> Source:
    documents: list[Document] = []
    skipped = 0
    for folder, folders, files in os.walk(root, onerror=_refuse):
        folders[:] = sorted(each for each in folders if not each.startswith("."))
        for file in sorted(files):
            path = Path(folder, file)
            textual = path.suffix.lower() in TEXT_SUFFIXES and path.is_file()
            size = _size(path) if textual else 0
            if size and is_text(path):
                documents.append(Document(path.relative_to(root).as_posix(), path, size))
            else:
                skipped += 1
    if not documents:
        raise DataError(
            f"the folder holds no text ({skipped} files skipped)",
            where=name,
            next_step="text files end in .txt, .md, .py, .jsonl or similar, and are in UTF-8",
        )
    documents.sort(key=lambda document: document.name)
    return Source(name, tuple(documents), skipped, whole=False)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise _unreadable(path, error) from None


def _refuse(error: OSError) -> None:
    raise _unreadable(Path(error.filename or "?"), error)


def _unreadable(path: Path, error: OSError) -> DataError:
    return DataError(f"the training text cannot be read: {error.strerror}", where=str(path))
