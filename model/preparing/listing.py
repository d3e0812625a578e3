"""The hashes of a data set's files, as its host published them to the launching machine."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

from model.preparing.cache import Cache
from model.preparing.fetch import Fetcher
from trmcloud.core.catalog import hub
from trmcloud.core.catalog.datasets import DataSet
from trmcloud.core.errors import DataError
from trmcloud.io.files import write_atomic


def with_published_hashes(data_set: DataSet, cache: Cache, fetcher: Fetcher) -> DataSet:
    """The data set with its files' hashes: those of its host, held to the one hash of all of them
    that the launching machine gave.

    Raises:
        DataError: the host has others, or none. PassingError: it stayed away.
    """
    files = hub.hub_files(data_set)
    if not data_set.listing or files is None:
        return data_set
    name = hashlib.sha256(data_set.listing.encode()).hexdigest()[:32]
    kept = cache.root / "listings" / f"{name}.json"
    try:
        hashes = {str(file): str(sha256) for file, sha256 in json.loads(kept.read_text()).items()}
    except (OSError, ValueError, AttributeError, RecursionError):
        hashes = {}
    if hub.listing_sha256(hashes) != data_set.listing:
        listed: dict[str, str] = {}
        for page in fetcher.pages(files.tree_address):
            listed |= hub.hashes_in(page, files.folder)
        hashes = hub.of_set(data_set, listed)
        if hub.listing_sha256(hashes) != data_set.listing:
            raise DataError(
                f"{data_set.name}: its host publishes other hashes here than where the run was "
                "launched",
                where=files.tree_address,
                next_step="launch again, and compare the data set's page from both machines",
            )
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(kept, json.dumps(hashes), durable=False)
    return replace(data_set, sha256={**hashes, **data_set.sha256})
