"""A tokenizer that was trained before on the very same shards, and where the next one is kept."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from model.data.tokenizers import is_as_trained
from model.preparing import readers
from model.preparing.cache import Cache
from model.preparing.corpus import Corpus
from trmcloud.core.spec.settings import BYTE_PAIRS, SEGMENTS, PhaseRecipe
from trmcloud.io.files import write_atomic


class KeptTokenizer:
    """The cache's tokenizer for one corpus and one kind of vocabulary."""

    def __init__(
        self, corpus: Corpus, settings: PhaseRecipe, cache: Cache, *, is_own: bool
    ) -> None:
        """``is_own``: only this machine writes into the cache."""
        import tokenizers

        self._is_own, self._settings = is_own, settings
        self.was_refused = False

        data_set = corpus.data_set
        said = [
            tokenizers.__version__,
            *(file.identity for file in corpus.train[: data_set.tokenizer_shards]),
            data_set.column,
            *data_set.fields,
            str(data_set.tokenizer_text_bytes),
            settings.tokenizer,
            str(settings.text_ids),
            str(settings.seed) if corpus.data_set.is_generated else "",
            *([f"{SEGMENTS} {readers.VERSION}"] if settings.rows == SEGMENTS else []),
        ]
        self._path: Path = cache.tokenizer(hashlib.sha256("\0".join(said).encode()).hexdigest())

    def read(self) -> str:
        """Its JSON; empty where there is none, or not what was written."""
        try:
            kept = json.loads(self._path.read_text())
            text, digest = kept["tokenizer"], kept["sha256"]
            if hashlib.sha256(text.encode()).hexdigest() != digest:
                return ""
            if not self._is_own:
                wanted = self._settings
                if is_as_trained(text, wanted.tokenizer, wanted.text_ids):
                    return text
                self.was_refused = wanted.tokenizer in BYTE_PAIRS
                return ""
            return text
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return ""

    def write(self, text: str) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256(text.encode()).hexdigest()
        write_atomic(self._path, json.dumps({"tokenizer": text, "sha256": digest}), durable=False)
