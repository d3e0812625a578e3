"""Computes from a file's bytes whether opening it may run code that it holds.

The bytes decide; a name can only add caution. "Only data" needs a proof: the whole file must be
valid in a format that holds no code, and no other reading of the same bytes (as a pickle, as a zip)
may run any. Nothing is ever unpickled or imported. A file is read in pieces: memory is bounded.
"""

from __future__ import annotations

import ast
import bz2
import codecs
import json
import lzma
import math
import os
import pickletools
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

from trmcloud.core.values import Value

_CHUNK = 1 << 20
_MOST_HEADER = 16 << 20
_MOST_UNPACKED = 64 << 20
_MOST_MEMBERS = 4096
_MOST_OPCODES = 2_000_000
_MOST_JSON = 8 << 20
_MOST_LZMA_MEMORY = 128 << 20


class Effect(str, Enum):
    """The effect of opening a file the usual way. ``UNKNOWN`` is to be treated as code."""

    DATA = "data"
    CODE = "code"
    UNKNOWN = "unknown"


class Opening(Value):
    """``format``: what the bytes are, in a few words."""

    effect: Effect
    format: str


_NO_FORMAT = Opening(Effect.UNKNOWN, "an unknown format")
_PICKLE = Opening(Effect.CODE, "a pickle")
_ZIP_PICKLE = Opening(Effect.CODE, "a zip with a pickle in it")
_NOT_READ = Opening(Effect.UNKNOWN, "not readable here")
_PROGRAM = Opening(Effect.CODE, "a program, as its name shows")
_WEIGHTS_TOO = ".pth"
"""Python runs lines of a file of this name in its folder of packages; torch's files bear it too."""


def worst(found: Iterable[Opening]) -> Effect:
    """The effect of opening all of them; of none it is not known."""
    effects = {each.effect for each in found}
    order = (Effect.CODE, Effect.UNKNOWN, Effect.DATA)
    return next((effect for effect in order if effect in effects), Effect.UNKNOWN)


def opening_of(path: Path, name: str = "") -> Opening:
    """The effect of opening the file at ``path``, which may have another own ``name``."""
    by_name = (name or path.name).lower()
    if by_name.endswith(_PROGRAMS) and not by_name.endswith(_WEIGHTS_TOO):
        return _PROGRAM
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(handle, "rb") as file:
            found = _of_file(file, os.fstat(handle).st_size)
    except OSError:
        return _NOT_READ
    if by_name.endswith(_PROGRAMS) and found.effect is not Effect.CODE:
        return _PROGRAM
    if found.effect is Effect.DATA:
        return next((means for ends, means in _BY_NAME if by_name.endswith(ends)), found)
    return found


_PROGRAMS = (
    ".py", ".pyc", ".pyo", ".pyd", ".so", ".dll", ".dylib", ".exe", ".sh", ".bat", ".ps1", ".js",
    ".mjs", ".ipynb", ".jar", ".pth",
    ".pkl", ".pickle", ".joblib",
)  # fmt: skip
"""Ends of names which say that a file is run, or unpickled; ``.pth`` is also PyTorch's."""
_MARKUP = Opening(Effect.CODE, "a web page or drawing, whose scripts a browser runs")
_TEMPLATE = Opening(Effect.UNKNOWN, "a template, whose statements some readers execute")
_BY_NAME = (
    ((".html", ".htm", ".xhtml", ".svg", ".xml", ".xsl", ".xslt", ".mhtml", ".hta"), _MARKUP),
    ((".jinja", ".jinja2", ".j2", ".tmpl", ".mako"), _TEMPLATE),
)
"""Text that opens as more than text: by what a reader takes its name for."""


def _of_file(file: BinaryIO, size: int) -> Opening:
    begin = file.read(512)
    found = _walk(_Plain(file), _Budget())
    is_zip = begin[:4] == b"PK\x03\x04"
    if is_zip or _has_zip_end(file, size):
        inside = _of_zip(file, whole=is_zip)
        return inside if found is None or inside.effect is Effect.CODE else found
    if found is not None:
        return found
    for recognise in (_program, _packed, _tar, _hdf5, _numpy, _gguf, _safetensors, _text):
        opening = recognise(file, begin, size)
        if opening is not None:
            return opening
    return _NO_FORMAT


# -- pickles --------------------------------------------------------------------------------------
class _Budget:
    """The work that one file is worth, however its author has nested it."""

    def __init__(self) -> None:
        self.left_bytes, self.left_opcodes = _MOST_UNPACKED, _MOST_OPCODES


class _Reader(Protocol):
    def read(self, count: int) -> bytes: ...

    def skip(self, count: int) -> bool:
        """False where there are not so many bytes left."""


class _Plain:
    """A file from its beginning."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._size = os.fstat(file.fileno()).st_size
        file.seek(0)

    def read(self, count: int) -> bytes:
        return self._file.read(count)

    def skip(self, count: int) -> bool:
        if count > self._size - self._file.tell():
            return False
        self._file.seek(count, os.SEEK_CUR)
        return True


class _Stream:
    """The bytes that a function gives piece by piece, as far as ``budget`` allows."""

    def __init__(self, read: Callable[[int], bytes], budget: _Budget) -> None:
        self._read, self._held, self._budget = read, b"", budget

    def read(self, count: int) -> bytes:
        while len(self._held) < count and self._budget.left_bytes > 0:
            piece = self._read(min(_CHUNK, self._budget.left_bytes))
            if not piece:
                break
            self._budget.left_bytes -= len(piece)
            self._held += piece
        taken, self._held = self._held[:count], self._held[count:]
        return taken

    def skip(self, count: int) -> bool:
        while count > 0:
            piece = self.read(min(count, _CHUNK))
            if not piece:
                return False
            count -= len(piece)
        return True


_IMPORTS = frozenset({"STACK_GLOBAL", "EXT1", "EXT2", "EXT4"})
"""With ``GLOBAL`` and ``INST`` all that bring in a callable: without one no pickle calls any."""
_LENGTHS = {
    pickletools.TAKEN_FROM_ARGUMENT1: (1, False),
    pickletools.TAKEN_FROM_ARGUMENT4: (4, True),
    pickletools.TAKEN_FROM_ARGUMENT4U: (4, False),
    pickletools.TAKEN_FROM_ARGUMENT8U: (8, False),
}
_OPCODES = {ord(each.code): each for each in pickletools.opcodes}
_NAME = re.compile(rb"[\w.\-\x80-\xff]{1,512}")


def _walk(reader: _Reader, budget: _Budget) -> Opening | None:
    """Reads opcodes from the first byte on, as an unpickler does, and carries none of them out.

    Returns:
        A pickle, once an opcode imports something, or where one of protocol 2 or newer ends;
        unknown, where there are too many opcodes to tell; None where the bytes are no pickle.
    """
    window = _Window(reader)
    marked = window.peek() == 0x80
    stopped, read = False, -1
    while budget.left_opcodes > 0:
        budget.left_opcodes -= 1
        read += 1
        code = window.byte()
        opcode = _OPCODES.get(code) if code is not None else None
        if opcode is None or (opcode.name == "PROTO" and window.peek() > 5):
            return _PICKLE if marked and stopped else None
        stopped |= opcode.name == "STOP"
        if opcode.name in _IMPORTS:
            # Alone at the beginning each finds an empty stack or registry: it is another format.
            return _PICKLE if read >= 2 else None
        if opcode.name in ("GLOBAL", "INST"):
            return _PICKLE if window.is_name() and window.is_name() else None
        if opcode.arg is None:
            continue
        if opcode.arg.n >= 0:
            sound = window.skip(opcode.arg.n)
        elif opcode.arg.n == pickletools.UP_TO_NEWLINE:
            sound = window.skip_line()
        else:
            width, signed = _LENGTHS[opcode.arg.n]
            length = int.from_bytes(window.take(width), "little", signed=signed)
            sound = length >= 0 and window.skip(length)
        if not sound:
            return _PICKLE if marked and stopped else None
    return Opening(Effect.UNKNOWN, "too long to rule out a pickle")


class _Window:
    """Bytes one by one, read in pieces; ``skip`` reads nothing of what it leaves out."""

    def __init__(self, reader: _Reader) -> None:
        self._reader, self._held, self._at = reader, b"", 0

    def _more(self) -> bool:
        if self._at < len(self._held):
            return True
        self._held, self._at = self._reader.read(1 << 16), 0
        return bool(self._held)

    def byte(self) -> int | None:
        if not self._more():
            return None
        self._at += 1
        return self._held[self._at - 1]

    def peek(self) -> int:
        return self._held[self._at] if self._more() else 255

    def take(self, count: int) -> bytes:
        found = (self.byte() for _ in range(count))
        return bytes(each for each in found if each is not None)

    def skip(self, count: int) -> bool:
        held = len(self._held) - self._at
        if count <= held:
            self._at += count
            return True
        self._held, self._at = b"", 0
        return self._reader.skip(count - held)

    def skip_line(self) -> bool:
        while self._more():
            end = self._held.find(b"\n", self._at)
            self._at = len(self._held) if end < 0 else end + 1
            if end >= 0:
                return True
        return False

    def is_name(self) -> bool:
        """Whether the next line may name a module, or something in one."""
        line = bytearray()
        while len(line) <= 512 and (byte := self.byte()) is not None:
            if byte == 10:
                return bool(_NAME.fullmatch(bytes(line)))
            line.append(byte)
        return False


# -- archives -------------------------------------------------------------------------------------
def _has_zip_end(file: BinaryIO, size: int) -> bool:
    file.seek(max(0, size - (1 << 16) - 22))
    tail = file.read((1 << 16) + 22)
    return b"PK\x05\x06" in tail


class _Cautious:
    """A file for ``zipfile``, which reads a list of members whole: a longer one is refused."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable

    def read(self, count: int = -1) -> bytes:
        found = self._file.read(_MOST_HEADER + 1 if count < 0 else min(count, _MOST_HEADER + 1))
        if len(found) > _MOST_HEADER:
            raise zipfile.BadZipFile("its list of members is too long")
        return found


def _of_zip(file: BinaryIO, *, whole: bool) -> Opening:
    """PyTorch's files are zips with a pickle; NumPy's ``.npz`` hold arrays, some in pickles."""
    unclear = Opening(Effect.UNKNOWN, "a zip of an unknown kind")
    try:
        with zipfile.ZipFile(cast(BinaryIO, _Cautious(file))) as archive:
            members = archive.infolist()
            budget = _Budget()
            found = [_of_member(archive, each, budget) for each in members[:_MOST_MEMBERS]]
    except (zipfile.BadZipFile, OSError, ValueError, RuntimeError, NotImplementedError, KeyError,
            EOFError, zlib.error, lzma.LZMAError, MemoryError, IndexError):  # fmt: skip
        return unclear
    if Effect.CODE in {each.effect for each in found}:
        return _ZIP_PICKLE
    names = {each.filename for each in members}
    clean = whole and 0 < len(members) <= _MOST_MEMBERS and len(names) == len(members)
    if clean and all(each.effect is Effect.DATA for each in found):
        return Opening(Effect.DATA, "NumPy arrays")
    return unclear


def _of_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, budget: _Budget) -> Opening:
    if member.filename.lower().endswith(_PROGRAMS):
        return _PICKLE
    if member.is_dir() or not (budget.left_bytes and budget.left_opcodes):
        return _NO_FORMAT
    with archive.open(member) as inside:
        if (found := _walk(_Stream(inside.read, budget), budget)) is not None:
            return found
    with archive.open(member) as inside:
        begin = inside.read(1 << 16)
    return _of_array(begin, member.file_size) or _NO_FORMAT


def _packed(file: BinaryIO, begin: bytes, size: int) -> Opening | None:
    by: Any = None
    offset = 0
    if begin[:2] in (b"\x1f\x8b", b"x\x01", b"x^", b"x\x9c", b"x\xda", b"ZF"):
        by = zlib.decompressobj(47)
        offset = _zfile_offset(begin) if begin[:2] == b"ZF" else 0
    elif begin[:3] == b"BZh":
        by = bz2.BZ2Decompressor()
    elif begin[:6] == b"\xfd7zXZ\x00" or begin[:3] == b"]\x00\x00":
        by = lzma.LZMADecompressor(memlimit=_MOST_LZMA_MEMORY)
    elif begin[:4] not in (b"(\xb5/\xfd", b"\x04\x22M\x18") and begin[:2] != b"\x1f\x9d":
        return None
    budget, found = _Budget(), None
    if by is not None:
        file.seek(offset)
        with suppress(OSError, EOFError, ValueError, zlib.error, lzma.LZMAError, MemoryError):
            found = _walk(_Stream(_unpacked(file, by), budget), budget)
    if found is not None and found.effect is Effect.CODE:
        return Opening(Effect.CODE, "a compressed pickle")
    return Opening(Effect.UNKNOWN, "compressed")


def _zfile_offset(begin: bytes) -> int:
    """joblib once wrote the length before the stream, in hexadecimal text."""
    found = re.match(rb"ZF0x[0-9a-fA-F]+L? *", begin)
    return found.end() if found is not None else 2


def _unpacked(file: BinaryIO, by: Any) -> Callable[[int], bytes]:
    def read(most: int) -> bytes:
        while not by.eof:
            left = getattr(by, "unconsumed_tail", b"")
            needs = getattr(by, "needs_input", True)
            data = left or (file.read(1 << 16) if needs else b"")
            piece: bytes = by.decompress(data, most)
            if piece or (needs and not data):
                return piece
        return b""

    return read


def _tar(file: BinaryIO, begin: bytes, size: int) -> Opening | None:
    """Its members one after the other; none is unpacked."""
    if begin[257:262] != b"ustar":
        return None
    at, budget = 0, _Budget()
    for _ in range(_MOST_MEMBERS):
        file.seek(at)
        head = file.read(512)
        text = head[124:136].rstrip(b"\0 ")
        if head[257:262] != b"ustar" or not re.fullmatch(rb"[0-7]{1,12}", text):
            break
        length = int(text, 8)
        if head[:100].rstrip(b"\0").lower().endswith(tuple(each.encode() for each in _PROGRAMS)):
            return Opening(Effect.CODE, "a tar with a pickle in it")
        found = _walk(_Stream(file.read, budget), budget)
        if found is not None and found.effect is Effect.CODE:
            return Opening(Effect.CODE, "a tar with a pickle in it")
        at += 512 + -(-length // 512) * 512
    return Opening(Effect.UNKNOWN, "a tar")


# -- formats --------------------------------------------------------------------------------------
def _program(file: BinaryIO, begin: bytes, size: int) -> Opening | None:
    marks = (b"\x7fELF", b"MZ", b"#!", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe")
    return Opening(Effect.CODE, "a program") if begin.startswith(marks) else None


def _hdf5(file: BinaryIO, begin: bytes, size: int) -> Opening | None:
    """Arrays; Keras' and PyTables' readers run what they find in one."""
    at = 0
    while at + 8 <= size:
        file.seek(at)
        if file.read(8) == b"\x89HDF\r\n\x1a\n":
            return Opening(Effect.UNKNOWN, "HDF5, which some readers execute")
        at = at * 2 or 512
    return None


def _numpy(file: BinaryIO, begin: bytes, size: int) -> Opening | None:
    if begin[:6] != b"\x93NUMPY":
        return None
    file.seek(0)
    return _of_array(file.read(1 << 16), size) or _NO_FORMAT


_PLAIN_TYPE = re.compile(r"[<>|=]?([biufcSVU?])(\d{0,9})|[<>|=]?[mM]8(\[[0-9A-Za-z/]{1,20}\])?")


def _of_array(begin: bytes, size: int) -> Opening | None:
    """A ``.npy`` file, by its first 64 KiB; None where it is none that can be judged."""
    if begin[:6] != b"\x93NUMPY" or len(begin) < 12:
        return None
    width = 2 if begin[6] == 1 else 4
    length = int.from_bytes(begin[8 : 8 + width], "little")
    text = begin[8 + width : 8 + width + length]
    if begin[6] not in (1, 2, 3) or len(text) < length or length > 10_000:
        return None
    try:
        head = ast.literal_eval(text.decode("utf-8" if begin[6] == 3 else "latin-1").strip())
        item = _item_bytes(head["descr"])
        shape = [int(each) for each in head["shape"]]
    except (ValueError, SyntaxError, TypeError, KeyError, RecursionError, MemoryError):
        return None
    if item is None:
        return Opening(Effect.CODE, "NumPy objects, stored as a pickle")
    if any(each < 0 for each in shape) or 8 + width + length + item * math.prod(shape) != size:
        return None
    return Opening(Effect.DATA, "a NumPy array")


def _item_bytes(descr: Any, deep: int = 0) -> int | None:
    """Bytes of one item of this type; None where it may be an object.

    Raises:
        ValueError: it is no type that can be judged.
    """
    if isinstance(descr, str):
        if "O" in descr:
            return None
        found = _PLAIN_TYPE.fullmatch(descr)
        if found is None:
            raise ValueError(descr)
        if found[1] is None:
            return 8
        each = int(found[2] or 1)
        return each * 4 if found[1] == "U" else each
    if not isinstance(descr, list) or deep > 4:
        raise ValueError("an unexpected type")
    total = 0
    for field in descr:
        item = _item_bytes(field[1], deep + 1)
        if item is None:
            return None
        shape = field[2] if len(field) > 2 else ()
        total += item * math.prod(int(each) for each in shape)
    return total


def _safetensors(file: BinaryIO, begin: bytes, size: int) -> Opening | None:
    """Length, header, then tensors without a gap up to the last byte: anything else is none."""
    length = int.from_bytes(begin[:8], "little")
    if not 2 <= length <= min(_MOST_HEADER, size - 8) or begin[8:9] != b"{":
        return None
    file.seek(8)
    try:
        header = json.loads(file.read(length).decode("utf-8"), object_pairs_hook=_once)
        header.pop("__metadata__", None)
        spans = sorted(_span(entry) for entry in header.values())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    at = 0
    for begins, ends in spans:
        if begins != at:
            return None
        at = ends
    if 8 + length + at != size:
        return None
    return Opening(Effect.DATA, "safetensors")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key occurs twice")
    return made


_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "I16": 16, "U16": 16, "F16": 16,
    "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64, "C64": 64,
}  # fmt: skip


def _span(entry: Any) -> tuple[int, int]:
    begins, ends = entry["data_offsets"]
    shape = entry["shape"]
    numbers = [begins, ends, *shape]
    if any(type(each) is not int or each < 0 for each in numbers) or len(entry) != 3:
        raise ValueError("an unexpected entry")
    if (ends - begins) * 8 != math.prod(shape) * _BITS[entry["dtype"]]:
        raise ValueError("its length does not match its shape")
    return begins, ends


def _gguf(file: BinaryIO, begin: bytes, size: int) -> Opening | None:
    """Weights with a template for chats: some readers have run what that template says."""
    if begin[:4] != b"GGUF":
        return None
    return Opening(Effect.UNKNOWN, "GGUF, whose chat template some readers execute")


_ODD = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|!!python|tag:yaml\.org,2002:python")
_TAG = re.compile(
    rb"(\xef\xbb\xbf)?\s*(<!--.*?-->\s*)*"
    rb"<(!doctype|\?xml|html|head|body|svg|script|style|iframe|title)\b",
    re.IGNORECASE | re.DOTALL,
)
_STATEMENT = re.compile(
    r"\{%[-+]?\s*(for|if|set|macro|include|import|from|block|extends|call|filter|raw|do|with)\b"
    r"|\{\{[^{}]{0,200}__"
)
_TARGET = re.compile(r"(?<!\w)(_target_(?!\w)|class_path['\"]?\s*:)")
"""Keys by whose values Hydra and Lightning import what they call."""
_ESCAPED = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U000([0-9a-fA-F]{5})|\r?\n[ \t]*)")
_OVERLAP = 512


def _text(file: BinaryIO, begin: bytes, size: int) -> Opening | None:
    """UTF-8 without control characters, nor tags with which YAML makes objects of Python."""
    file.seek(0)
    decoder, before = codecs.getincrementaldecoder("utf-8")(), ""
    has_statement = names_code = False
    try:
        while chunk := file.read(_CHUNK):
            piece = before + decoder.decode(chunk)
            if _ODD.search(piece):
                return None
            has_statement = has_statement or bool(_STATEMENT.search(piece))
            names_code = names_code or _names_target(piece)
            before = piece[-_OVERLAP:]
        decoder.decode(b"", final=True)
    except ValueError:
        return None
    if _TAG.match(begin):
        return _MARKUP
    is_json = begin.lstrip()[:1] in (b"{", b"[") and _is_json(file, size)
    if names_code or (begin.lstrip()[:1] == b"{" and _names_code(file, size)):
        return Opening(Effect.CODE, "text that names code to load")
    if has_statement and not is_json:  # as a string in JSON it is data until something renders it
        return _TEMPLATE
    return Opening(Effect.DATA, "text")


def _names_target(piece: str) -> bool:
    """Whether such a key is there, spelled with escapes or without."""
    if _TARGET.search(piece):
        return True
    return "\\" in piece and bool(_TARGET.search(_ESCAPED.sub(_unescaped, piece)))


def _unescaped(found: re.Match[str]) -> str:
    digits = found[1] or found[2] or found[3]
    return chr(int(digits, 16)) if digits else ""


def _is_json(file: BinaryIO, size: int) -> bool:
    file.seek(0)
    try:
        return size <= _MOST_JSON and json.loads(file.read(_MOST_JSON)) is not None
    except (ValueError, RecursionError):
        return False


def _names_code(file: BinaryIO, size: int) -> bool:
    """``auto_map`` names Python files that transformers imports, where its user allows that."""
    if size > _MOST_JSON:
        return True
    file.seek(0)
    try:
        found = json.loads(file.read(_MOST_JSON))
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and "auto_map" in found
