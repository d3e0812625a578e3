"""A pod's part in the tokens that a bucket keeps: bring what is there, store what it makes.

The trainer's own ``model.prepare`` writes and reads the cache; all that is done here is to fill it
before that begins, and to store what it has made since. Nothing of it may hold up a run: what
cannot be had is made anew, and what cannot be stored is left.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from trmcloud.core.contract.bucket import CachedFile, CacheGrants
from trmcloud.core.contract.bucket_layout import (
    MAX_PUT_BYTES,
    entry_of,
    is_cache_file,
    is_token_slot,
)
from trmcloud.core.contract.records import dump
from trmcloud.io.files import read_small, write_atomic
from trmcloud.pod.storage.presigned import (
    DamagedObject,
    ObjectExists,
    Objects,
    StoreError,
    fetch_file,
)

_AGAIN_AFTER_S = 60.0
_MOST_FAILURES = 5
_BLOCK = 1 << 20
_STORED_NAME = ".stored.json"
"""In the cache: what this pod stored, and in which slots."""


class TokenCache:
    """``now`` is a steady clock; ``say`` takes a line for the log."""

    def __init__(
        self,
        root: Path,
        grants: CacheGrants,
        say: Callable[[str], None],
        now: Callable[[], float],
    ) -> None:
        self._root, self._say, self._now = root, say, now
        self._grants = grants
        self._stored = self._recall() | {file.name: file.slot for file in grants.held}
        self._left: set[str] = set()
        self._failures = 0
        self._again_at = 0.0

    def renew(self, grants: CacheGrants) -> None:
        """Later grants; what was stored since the first ones is known better here."""
        self._grants = grants

    # -- before tokens are made -----------------------------------------------------------------

    def bring(self, moved: Callable[[], None]) -> None:
        """Fill the cache with what the bucket has, each file held to the hash that the ledger
        pinned. A damaged one is made anew and stored again; a store that does not answer is not
        asked for the rest."""
        folder = self._folder()
        if folder is None:
            return
        brought, damaged = set[str](), set[str]()
        for file in self._grants.gets:
            target = folder / file.name
            if not is_cache_file(file.name) or target.exists():
                continue
            making = target.with_name(f".{target.name}.bring")
            try:
                fetch_file(making, file, moved)
                target.parent.mkdir(parents=True, exist_ok=True)
                os.replace(making / file.name, target)
                brought.add(file.name)
            except DamagedObject:
                damaged.add(file.name)
            except StoreError as error:
                self._say(f"bucket tokens not readable, made again: {error}")
                break
            except OSError as error:
                self._say(f"tokens of the bucket cannot be kept here: {error.strerror or error}")
                break
            finally:
                shutil.rmtree(making, ignore_errors=True)
        for name in sorted(damaged - brought):
            self._stored.pop(name, None)
            self._say(f"{name} in the bucket differs from the ledger: made again")
        if brought:
            self._say(f"{len(brought)} files of tokens came from the bucket")

    # -- while they are made ----------------------------------------------------------------------

    def store_next(self) -> bool:
        """Store one file that the bucket has not; whether there was one."""
        if self._now() < self._again_at or self._failures >= _MOST_FAILURES:
            return False
        path, name = next(self._unstored(), (None, ""))
        if path is None:
            return False
        puts, used = self._grants.puts, set(self._stored.values())
        slot = next(
            (s for s in puts if is_token_slot(s) and entry_of(s) in puts and s not in used), ""
        )
        if not slot:
            self._left.add(name)  # more than were expected: another tokenizer's are there, too
            return True
        try:
            with contextlib.closing(Objects()) as objects:
                made = self._put(objects, path, name, slot)
                objects.put_bytes(puts[entry_of(slot)], dump(made).encode())
            self._stored[name] = slot
            self._remember()
        except ObjectExists:
            self._stored[f"taken {slot}"] = slot  # before this process began anew: never twice
        except StoreError as error:
            self._failures += 1
            self._again_at = self._now() + _AGAIN_AFTER_S
            self._say(f"tokens not stored: {error}")
        except OSError:
            self._left.add(name)
        return True

    def _recall(self) -> dict[str, str]:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            text = read_small(Path(self._grants.folder) / _STORED_NAME) or "{}"
            return {str(name): str(slot) for name, slot in json.loads(text).items()}
        return {}

    def _remember(self) -> None:
        if (folder := self._folder()) is not None:
            write_atomic(folder / _STORED_NAME, json.dumps(self._stored), durable=False)

    def _unstored(self) -> Iterator[tuple[Path, str]]:
        """Files that are whole: a token file is once its record is there, which follows it."""
        folder = self._folder()
        if folder is None:
            return
        for path in sorted(folder.glob("tokenizers/*.json")):
            yield from self._wanted(folder, path)
        for record in sorted(folder.glob("tokens/*.json")):
            yield from self._wanted(folder, record.with_suffix(".bin"))
            yield from self._wanted(folder, record)

    def _wanted(self, folder: Path, path: Path) -> Iterator[tuple[Path, str]]:
        name = path.relative_to(folder).as_posix()
        known = name in self._stored or name in self._left
        if not known and is_cache_file(name) and path.is_file() and not path.is_symlink():
            yield path, name

    def _put(self, objects: Objects, path: Path, name: str, slot: str) -> CachedFile:
        """One file, which must be what its record says where it has one.

        Raises:
            OSError: it is not, or is gone.
        """
        with open(path, "rb") as file:
            md5, sha256, size = hashlib.md5(), hashlib.sha256(), 0
            while block := file.read(_BLOCK):
                md5.update(block)
                sha256.update(block)
                size += len(block)
            if size > MAX_PUT_BYTES or sha256.hexdigest() != _recorded(path, sha256.hexdigest()):
                raise OSError(0, "differs from its record")

            def read(at: int, count: int) -> bytes:
                return os.pread(file.fileno(), count, at)

            objects.put(self._grants.puts[slot], size, md5.digest(), read)
        return CachedFile(name, slot, size, sha256.hexdigest())

    def _folder(self) -> Path | None:
        folder = Path(self._grants.folder)
        inside = os.path.realpath(folder).startswith(os.path.realpath(self._root) + os.sep)
        return folder if inside else None


def _recorded(path: Path, otherwise: str) -> str:
    """The SHA-256 that the record beside a token file states."""
    if path.suffix == ".bin":
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            return str(json.loads(path.with_suffix(".json").read_text())["sha256"])
        return ""
    return otherwise
