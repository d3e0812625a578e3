"""Parts of one checkpoint that ranks on several machines write, each to its own disk.

PyTorch's distributed checkpoint (DCP) is a folder: every rank writes its own ``__RANK_N.distcp``,
and the coordinator, once all have, the index ``.metadata``, which names every file. Where the
ranks' machines have no disk in common, the first machine has the index and its own files alone.
The other machines send it theirs, to the folder where a common disk would have had them; from
there on the folder is a checkpoint like any other. Until every file that its index names is
there, it is none.

DeepSpeed's folder is alike: each rank writes its shard of the optimizer (of the weights too, with
ZeRO 3), and the first rank's file of model states says how many ranks there are.

A machine offers what it has; the first one asks for what it lacks. Only machines that were given
the same key are heard: each message bears a keyed hash, and each file's bytes are hashed. They are
not encrypted, as the gradients between the machines are not.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import re
import secrets
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from trmcloud.io.foreign_files import open_unlinked, read_part

SUFFIX, INDEX_NAME = ".distcp", ".metadata"
PORT = 29_399
"""Of the first machine, beside the port of torchrun's rendezvous."""
_FILE_NAME = re.compile(rb"__[0-9]{1,6}_[0-9]{1,6}\.distcp")
"""torch.distributed.checkpoint.filesystem: ``__{rank}_{count}.distcp``."""
_ZERO_NAME = re.compile(
    rb"(?:((?:bf16_|fp16_)?zero_pp_rank_)[0-9]{1,6}_)?mp_rank_[0-9]{2,6}_((?:optim|model)_states\.pt)"
)
"""deepspeed.runtime.engine: ``_get_ckpt_name`` and ``_get_rank_zero_ckpt_name``."""
_RANKS = re.compile(rb"[dm]p_world_size(?:q.|r.{4}|\x94)?(?:K(.)|M(.{2})|J(.{4}))", re.DOTALL)
"""``dp_world_size`` and ``mp_world_size`` in a pickle, and the whole number behind each."""
_MOST_RANKS = 4096
_MOST_INDEX_BYTES = 256 << 20
_MOST_STATES_BYTES = 32 << 20
"""Of a file of model states, whose pickle stands at its beginning."""
_MOST_MESSAGE_BYTES = 4 << 20
_MOST_OFFERS = 4096
_MOST_ASKED = 8
"""Files that are asked for at once."""
_MOST_MACHINES = 64
_CHUNK = 1 << 20
_TIMEOUT_S = 20.0
_ROUND_S = 0.5
_AGAIN_S = 2.0
_AFTER_INDEX_S = 2.0
"""A file that was written later than that after the index is of a later save."""
_WRITTEN_FOR_S = 3.0
"""A shard that changed no longer ago may still be written: there is no index that comes last."""
_SPARE_BYTES = 256 << 20
"""Of the disk, left to the command when a file is received."""

_SplitFile = tuple[str, str, str]
"""Place, folder below it, name."""


class Index(NamedTuple):
    """The file that names what a folder has to hold, and when it was written, in ns."""

    path: Path
    written_ns: int

    @property
    def is_current(self) -> bool:
        """Whether it is still the same one."""
        return _time_of(self.path) == self.written_ns


class SplitFolder(NamedTuple):
    """A folder of such a checkpoint, as this machine has it."""

    place: str
    """The folder outside the working tree that it is below, as it was named; else empty."""
    path: str
    """Below the place."""
    root: Path
    """The folder itself."""
    files: Mapping[str, int]
    """Its files here, by name: when each was written, in ns."""
    index_file: Index | None
    """None: it is not here."""
    missing: frozenset[str]
    """Names in its index that are not here."""

    @property
    def is_whole(self) -> bool:
        return self.index_file is not None and not self.missing

    @property
    def name(self) -> str:
        return f"{self.place}/{self.path}" if self.place else self.path


@lru_cache(maxsize=512)
def named_files(index: Path, mtime_ns: int, size_bytes: int) -> frozenset[str]:
    """Return the files that an index names. It is a pickle, and nothing is loaded: names are looked
    for among its bytes. Its time and size are arguments since the result is kept."""
    return frozenset(
        name.decode() for name in _FILE_NAME.findall(read_part(index, _MOST_INDEX_BYTES))
    )


def zero_shards(names: Iterable[str]) -> list[str]:
    """The names among these that DeepSpeed gives to ranks' files."""
    return sorted(name for name in names if _ZERO_NAME.fullmatch(os.fsencode(name)))


@lru_cache(maxsize=512)
def zero_files(
    index: Path, mtime_ns: int, size_bytes: int, shards: tuple[str, ...]
) -> frozenset[str]:
    """Return the files that a DeepSpeed folder with these shards has to have, by the number of
    ranks that its model states bear. They are a zip of a pickle, and nothing is loaded. Where they
    bear none, return the shards themselves."""
    text = read_part(index, _MOST_STATES_BYTES)
    counts = {}
    for found in _RANKS.finditer(text):
        digits = found.group(1) or found.group(2) or found.group(3)
        counts[found.group(0)[:2]] = int.from_bytes(digits, "little")
    data, model = counts.get(b"dp", 0), counts.get(b"mp", 1)
    if not 0 < data <= _MOST_RANKS or not 0 < model <= _MOST_RANKS or data * model > _MOST_RANKS:
        return frozenset(shards)
    files = set()
    for name in shards:
        parts = _ZERO_NAME.fullmatch(name.encode())
        assert parts is not None
        zero, what = (parts.group(1) or b"").decode(), parts.group(2).decode()
        for rank in range(model):
            tensor = f"mp_rank_{rank:02d}_{what}"
            files |= {f"{zero}{n}_{tensor}" for n in range(data)} if zero else {tensor}
    return frozenset(files)


def _may_travel(folder: SplitFolder) -> bool:
    """Whether files of this save are told from those of another one: DCP's index comes last, by
    time. DeepSpeed's comes first: there the folder's name must bear the save's number."""
    is_zero = folder.index_file is not None and folder.index_file.path.name != INDEX_NAME
    return not is_zero or re.search(r"[0-9]", folder.root.name) is not None


class Refused(OSError):
    """The other side is not who it has to be, or does not keep to the protocol."""


class Channel:
    """Messages between two machines: lines of JSON, each behind its keyed hash, and bytes of files.

    Both sides send a nonce first: no message of another connection is one of this.
    """

    def __init__(self, connection: socket.socket, key: str, *, asks: bool) -> None:
        """
        Raises:
            OSError: the other side has gone.
        """
        connection.settimeout(_TIMEOUT_S)
        self._connection, self._reader = connection, connection.makefile("rb")
        own = secrets.token_hex(16)
        connection.sendall(own.encode() + b"\n")
        theirs = self._reader.readline(64).decode("ascii", "replace").strip()
        nonces = f"{own} {theirs}" if asks else f"{theirs} {own}"
        self._key = hmac.digest(key.encode(), nonces.encode(), "sha256")
        self._sends, self._hears = (b"asks", b"has") if asks else (b"has", b"asks")
        self._sent = self._heard = 0

    def send(self, message: Mapping[str, object]) -> None:
        text = json.dumps(message).encode()
        self._sent += 1
        self._connection.sendall(self._mark(self._sends, self._sent, text) + b" " + text + b"\n")

    def hear(self) -> dict[str, Any]:
        """
        Raises:
            Refused: it is not the other side's next message. OSError: the other side has gone.
        """
        line = self._reader.readline(_MOST_MESSAGE_BYTES)
        mark, _, text = line.rstrip(b"\n").partition(b" ")
        self._heard += 1
        if not hmac.compare_digest(mark, self._mark(self._hears, self._heard, text)):
            raise Refused("a machine not of this pod" if line else "it has gone")
        said = json.loads(text)
        if not isinstance(said, dict):
            raise Refused("no message")
        return said

    def send_file(self, path: Path) -> None:
        """Its size, its bytes, and their hash; an empty hash where it changed meanwhile. A file
        that is gone has the size -1."""
        try:
            file = open_unlinked(path)
        except OSError:
            self.send({"size": -1})
            return
        with file:
            before = os.fstat(file.fileno())
            self.send({"size": before.st_size})
            digest, left = hashlib.sha256(), before.st_size
            while left:
                chunk = file.read(min(_CHUNK, left))
                if not chunk:
                    chunk = bytes(min(_CHUNK, left))  # cut meanwhile: its hash says so
                digest.update(chunk)
                self._connection.sendall(chunk)
                left -= len(chunk)
            after = os.fstat(file.fileno())
        same = (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns)
        self.send({"sha256": digest.hexdigest() if same else ""})

    def receive_file(self, into: Path, most_bytes: int, moved: Callable[[], None]) -> bool:
        """Write what ``send_file`` sends; whether it is whole.

        Raises:
            Refused: it is larger than ``most_bytes``. OSError: the disk, or the other side.
        """
        size = self.hear().get("size")
        if type(size) is not int or size < 0:
            return False
        if size > most_bytes:
            raise Refused(f"{size / 1e9:.2f} GB, and {most_bytes / 1e9:.2f} GB have room")
        digest, left = hashlib.sha256(), size
        with open(into, "wb") as file:
            while left:
                chunk = self._reader.read(min(_CHUNK, left))
                if not chunk:
                    raise Refused("it has gone")
                digest.update(chunk)
                file.write(chunk)
                left -= len(chunk)
                moved()
            file.flush()
            os.fsync(file.fileno())
        return self.hear().get("sha256") == digest.hexdigest()

    def _mark(self, side: bytes, number: int, text: bytes) -> bytes:
        return (
            hmac.new(self._key, b"%s %d %s" % (side, number, text), "sha256").hexdigest().encode()
        )


class PartsReceiver:
    """The first machine's side: a server that asks for what folders here lack.

    ``spool`` is a folder for files on their way; ``say`` puts a line into the log.
    """

    def __init__(
        self, spool: Path, key: str, say: Callable[[str], None], *, port: int = PORT
    ) -> None:
        """
        Raises:
            OSError: the port is taken.
        """
        shutil.rmtree(spool, ignore_errors=True)
        spool.mkdir(parents=True)
        self._spool, self._key, self._say = spool, key, say
        self._lock = threading.Lock()
        self._wanted: dict[_SplitFile, Index] = {}
        self._coming: set[_SplitFile] = set()
        self._received: dict[_SplitFile, Index] = {}
        self._moved_at = time.monotonic()
        self._is_over = False
        self._server = socket.create_server(("", port), backlog=_MOST_MACHINES)
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._accept, name="parts", daemon=True).start()

    @property
    def idle_s(self) -> float:
        """Seconds since a byte came."""
        return time.monotonic() - self._moved_at

    def drop_stale(self) -> None:
        """Delete files of an earlier save, whose index another one has taken the place of."""
        with self._lock:
            for key, index in list(self._received.items()):
                if index.is_current:
                    continue
                del self._received[key]
                path = index.path.parent / key[2]
                if _time_of(path) == index.written_ns:  # as it was put there
                    path.unlink(missing_ok=True)

    def look(self, folders: Iterable[SplitFolder]) -> None:
        """Ask from now on for what these lack."""
        with self._lock:
            self._wanted = {
                (folder.place, folder.path, name): folder.index_file
                for folder in folders
                if folder.index_file is not None and _may_travel(folder)
                for name in folder.missing
            }

    def close(self) -> None:
        """Ask for nothing more, and tell whoever offers."""
        self._is_over = True

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            channel = Channel(connection, self._key, asks=True)
            while True:
                offers = channel.hear()["offers"]
                asked = self._choose(offers)
                try:
                    channel.send({"asks": asked, "more": not self._is_over})
                    for key in asked:
                        self._take(channel, key)
                finally:
                    with self._lock:
                        self._coming.difference_update(asked)

    def _choose(self, offers: Sequence[Sequence[Any]]) -> list[_SplitFile]:
        """Of what is offered, what is missing here and is of the same save as the index here."""
        now, chosen = time.time(), []
        with self._lock:
            for place, path, name, age_s in offers[:_MOST_OFFERS]:
                key = str(place), str(path), str(name)
                wanted = self._wanted.get(key)
                if wanted is None or key in self._coming or self._is_over:
                    continue
                is_last = wanted.path.name == INDEX_NAME
                if (
                    is_last
                    and (now - float(age_s)) * 1e9 > wanted.written_ns + _AFTER_INDEX_S * 1e9
                ):
                    continue
                chosen.append(key)
                if len(chosen) == _MOST_ASKED:
                    break
            self._coming.update(chosen)
        return chosen

    def _take(self, channel: Channel, key: _SplitFile) -> None:
        partial = self._spool / f"{threading.get_ident()}.part"
        try:
            room = shutil.disk_usage(self._spool).free - _SPARE_BYTES
            if channel.receive_file(partial, room, self._moved):
                self._install(partial, key)
        except Refused as why:
            self._say(f"{key[1]}/{key[2]} did not come from its machine: {why}")
            raise
        finally:
            partial.unlink(missing_ok=True)

    def _moved(self) -> None:
        self._moved_at = time.monotonic()

    def _install(self, partial: Path, key: _SplitFile) -> None:
        with self._lock:
            index = self._wanted.get(key)
            if index is None or not index.is_current:
                return  # the command has deleted the folder, or saves anew
            target = index.path.parent / key[2]
            if os.path.lexists(target):
                return
            # Its time is the save's: by it the checkpoint gets its metric.
            os.utime(partial, ns=(index.written_ns, index.written_ns))
            shutil.move(partial, target)
            self._received[key] = index
            self._wanted.pop(key, None)


class PartsSender:
    """Another machine's side: it offers what it has to the first one, at ``address``, and sends
    what that asks for."""

    def __init__(self, address: tuple[str, int], key: str) -> None:
        self._address, self._key = address, key
        self._folders: tuple[SplitFolder, ...] = ()
        self._has_ended = False
        self._over = threading.Event()
        self._moved_at = time.monotonic()
        threading.Thread(target=self._run, name="parts offered", daemon=True).start()

    def look(self, folders: Iterable[SplitFolder]) -> None:
        self._folders = tuple(folders)

    def end(self, idle_s: float, most_s: float, meanwhile: Callable[[], None]) -> None:
        """Stay while the first machine asks for files: until it wants nothing more, has asked for
        none for ``idle_s``, or ``most_s`` are over. Without a file to offer, do not stay."""
        if not any(folder.files for folder in self._folders):
            self._over.set()
            return
        began = self._moved_at = time.monotonic()
        self._has_ended = True
        while not self._over.wait(_ROUND_S / 2):
            now = time.monotonic()
            if now - self._moved_at >= idle_s or now - began >= most_s:
                return
            meanwhile()

    def _run(self) -> None:
        while not self._over.is_set():
            with (
                contextlib.suppress(OSError, ValueError, KeyError, TypeError),
                socket.create_connection(self._address, timeout=_TIMEOUT_S) as connection,
            ):
                self._talk(Channel(connection, self._key, asks=False))
            self._over.wait(_AGAIN_S)

    def _talk(self, channel: Channel) -> None:
        while not self._over.is_set():
            has_ended, now = self._has_ended, time.time()
            roots = {(folder.place, folder.path): folder.root for folder in self._folders}
            offers = [
                (folder.place, folder.path, name, now - written_ns / 1e9)
                for folder in self._folders
                for name, written_ns in folder.files.items()
                if name.endswith(SUFFIX) or now - written_ns / 1e9 >= _WRITTEN_FOR_S
            ]
            offers.sort(key=lambda offer: offer[3])
            channel.send({"offers": offers[:_MOST_OFFERS]})
            said = channel.hear()
            for place, path, name in said["asks"]:
                if not (_FILE_NAME.fullmatch(name.encode()) or _ZERO_NAME.fullmatch(name.encode())):
                    raise Refused(f"{name!r:.40} was not offered")
                channel.send_file(roots[place, path] / name)
                self._moved_at = time.monotonic()
            if has_ended and not said["more"]:
                self._over.set()
                return
            if not said["asks"]:
                self._over.wait(_ROUND_S)


def _time_of(path: Path) -> int | None:
    try:
        return os.lstat(path).st_mtime_ns
    except OSError:
        return None
