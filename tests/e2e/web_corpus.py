"""Corpora of the web's layout, small: shards of real text, on a host that answers as the real one.

The documents are parts of this Python's own sources, dealt out to parquet files that are named and
laid out as those of ``fineweb-edu`` and ``climbmix`` in ``model/datasets``.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.standins.data_host import DataHost
from trmcloud.adapters.files import load_data_set

NAME, OTHER = "fineweb-edu", "climbmix"
SHARDS = 10
"""More than its tokenizer is trained on."""
_SHARD_TEXT_BYTES = 150_000
_DOCUMENT_BYTES = 3_000


def put_on(host: DataHost, folder: Path) -> DataHost:
    """Serve the corpora; files are made below ``folder``."""
    documents = _documents((SHARDS + 1) * _SHARD_TEXT_BYTES)
    each = len(documents) // (SHARDS + 1)
    for made in map(load_data_set, (NAME, OTHER)):
        prefix = made.base_url.partition("huggingface.co")[2]
        for number, name in enumerate([*list(made.shard_names())[:SHARDS], made.validation]):
            path = folder / ("" if made.name == NAME else made.name) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            table = pa.table({made.column: documents[number * each : (number + 1) * each]})
            pq.write_table(table, path, row_group_size=16, compression="zstd")
            host.files[prefix + name] = path
    return host


def _documents(size: int) -> list[str]:
    found: list[str] = []
    whole = 0
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text = path.read_text(encoding="utf-8", errors="replace")
        for at in range(0, len(text), _DOCUMENT_BYTES):
            found.append(text[at : at + _DOCUMENT_BYTES])
            whole += len(found[-1])
            if whole >= size:
                return found
    return found
