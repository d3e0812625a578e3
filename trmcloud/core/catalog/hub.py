"""Data sets on Hugging Face at one revision: addresses of its API, and what its answers say. Pure.

A branch may point to other files tomorrow; a commit cannot. Of ``/api/datasets/REPO`` the path
``/revision/NAME`` says which commit a branch points to (``sha``), and ``/tree/COMMIT`` lists the
files, a thousand a page, the next page in a ``Link`` header. A file that Git LFS keeps has its
SHA-256 as ``lfs.oid``. Held against Hugging Face's own client in ``tests/unit/test_data_hosts.py``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from trmcloud.core.catalog.datasets import DataSet
from trmcloud.core.values import dataclass, replace

HUB = "https://huggingface.co"
MAX_ANSWER_BYTES = 16 << 20
MOST_PAGES = 100

_FILES = re.compile(r"/datasets/([\w.-]+(?:/[\w.-]+)?)/resolve/([^/]+)/((?:[^/]+/)*)")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_NEXT = re.compile(r'<([^<>]+)>\s*;\s*rel="next"')


@dataclass(frozen=True)
class HubFiles:
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
    """Where on Hugging Face a data set's files are; None where they are elsewhere."""
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


def of_set(data_set: DataSet, hashes: Mapping[str, str]) -> dict[str, str]:
    """Those of a data set's own files, in its order."""
    names = [*data_set.shard_names(), *([data_set.validation] if data_set.validation else [])]
    return {name: hashes[name] for name in names if name in hashes}


def listing_sha256(hashes: Mapping[str, str]) -> str:
    """One hash that stands for those of all files; '' for none."""
    said = "".join(f"{name} {sha256}\n" for name, sha256 in hashes.items())
    return hashlib.sha256(said.encode()).hexdigest() if said else ""


def at_commit(data_set: DataSet, commit: str, listing: str) -> DataSet:
    """The data set at one commit, whose files' hashes have the hash ``listing``."""
    there = hub_files(data_set)
    assert there is not None
    base = f"{HUB}/datasets/{there.repository}/resolve/{commit}/{quote(there.folder)}"
    return replace(data_set, base_url=base, listing=listing)
