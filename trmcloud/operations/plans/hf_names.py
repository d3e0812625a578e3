"""Sizes of Hugging Face models by name: those of the table that ships, or a ``config.json``."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

from trmcloud.core.errors import UsageError
from trmcloud.core.spec.hf_models import TWO_PARTS, HfModel, read_config

SHIPPED = Path(__file__).with_name("data") / "models.csv"
"""A row for each model: keys of its ``config.json``, its published parameters, and both sources."""
_FLAGS = ("tie_word_embeddings",)
_MOST_BYTES = 1 << 22
_MOST_NEAR = 3
_LIKENESS = 0.5
_VARIANT = re.compile(r"^meta-|-(instruct|chat|base|it|pt|hf)(?=-|$)|-[0-9]{4}$")
"""Parts of a name that do not change a model's size."""


def find_model(named: str) -> tuple[str, HfModel]:
    """(its name, its sizes) of a model that ships, of a ``config.json``, or of a folder with one.

    A name is found in any case, without its owner, and with another variant: Llama-3.1-8B-Instruct
    has the sizes of meta-llama/Llama-3.1-8B. The name is the typed one where it has an owner.

    Raises:
        UsageError: there is no such file, or no such name among those that ship.
    """
    path = Path(named).expanduser()
    if path.exists() or path.suffix == ".json" or named[:1] in "./~":
        folder = path.parent if path.suffix == ".json" else path
        return str(folder), read_model(path)
    rows = shipped()
    by_name = {_plain(name): name for name in rows}
    found = by_name.get(_plain(named))
    if found is not None:
        return (named if "/" in named else found), read_config(rows[found], found)
    parts = re.split("[-_]", named.rpartition("/")[2].lower())
    if kind := next((kind for kind in TWO_PARTS if kind in parts), None):
        read_config({"model_type": kind}, named)  # which refuses it
    import difflib  # for an error alone

    near = difflib.get_close_matches(_plain(named), by_name, _MOST_NEAR, _LIKENESS)
    told = f"nearest: {', '.join(by_name[name] for name in near)}; " if near else ""
    raise UsageError(
        f"--hf {named[:80]}: not among the {len(rows)} models whose sizes ship",
        next_step=f"{told}any model by its file: --hf path/to/config.json",
    )


def shipped() -> dict[str, dict[str, object]]:
    """Return the keys of a ``config.json`` of each model that ships, by the model's name."""
    with SHIPPED.open(encoding="utf-8", newline="") as file:
        return {row.pop("name"): _typed(row) for row in csv.DictReader(file)}


def read_model(config: Path) -> HfModel:
    """
    Raises:
        UsageError: there is no config.json of a model.
    """
    path = config / "config.json" if config.is_dir() else config
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES + 1)
        if len(text) > _MOST_BYTES:
            raise ValueError("too long")
        data = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not JSON"
        raise UsageError(
            f"the model's config.json cannot be read: {why}",
            where=str(path),
            next_step="--hf takes a config.json, the folder that contains it, or a model's name",
        ) from None
    return read_config(data, str(path))


def _plain(name: str) -> str:
    return _VARIANT.sub("", name.rpartition("/")[2].lower())


def _typed(row: dict[str, str]) -> dict[str, object]:
    texts = ("model_type", "source")
    return {
        key: value if key in texts else value == "true" if key in _FLAGS else int(value)
        for key, value in row.items()
        if value
    }
