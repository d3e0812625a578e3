"""Files in a working tree that trmcloud itself wrote: they are no code, and are never sent.

They are told by their contents, but for ``trmcloud.toml``: a user's file of the same name is sent.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from trmcloud.core.contract.command import is_inside
from trmcloud.core.contract.command_terms import TREE_NAME
from trmcloud.core.contract.manifest import MANIFEST_NAME, from_json
from trmcloud.core.errors import TrmcloudError
from trmcloud.io.foreign_files import read_part
from trmcloud.operations.home import PROJECT_FILE
from trmcloud.pod.agent.attempts import RECORD_NAME

_SPEC = "spec.json"
"""In the folder of an exported script's run, beside its record."""
_LEDGER, _HEAD = "ledger.db", "ledger.head"
_MOST_BYTES = 1 << 20
_PAGE = (
    b'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<meta http-equiv='
    b"\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'sha256-"
)
"""The first bytes of a receipt and of a month's page: ``views.html_page.head_of``."""
_BUNDLE = re.compile(r"trmcloud-r-[0-9a-f]{6}\.tar\.gz")


def fetched_among(root: Path, names: Sequence[str]) -> tuple[str, ...]:
    """The folders, each with a slash, that hold a checkpoint as it is brought home: a model of
    another run, and often larger than all of the code."""
    there = set(names)
    found = []
    for name in names:
        folder, slash, base = name.rpartition("/")
        if base == MANIFEST_NAME and slash:
            of_command = f"{folder}/{TREE_NAME}" in there
            if of_command or _is_manifest(root / name):
                found.append(f"{folder}/")
    return tuple(found)


def outputs_among(root: Path, names: Sequence[str], home: Path) -> tuple[str, ...]:
    """The other files, and folders with a slash, that trmcloud wrote: homes, receipts and pages of
    months, bundles, folders of exported scripts' runs, ``trmcloud.toml``."""
    there = set(names)
    found = set()
    below = os.path.relpath(os.path.realpath(home), os.path.realpath(root))
    if is_inside(below) and below != ".":
        found.add(f"{below}/")
    for name in names:
        folder, slash, base = name.rpartition("/")
        if base == _LEDGER and slash and f"{folder}/{_HEAD}" in there:
            found.add(f"{folder}/")
        elif base == RECORD_NAME and slash and f"{folder}/{_SPEC}" in there:
            if {"run_id", "ledger", "lives"} <= _read_json(root / name).keys():
                found.add(f"{folder}/")
        elif base.endswith(".html") and read_part(root / name, len(_PAGE)) == _PAGE:
            found |= {name, f"{name}.sig"} & there
        elif base == PROJECT_FILE or _BUNDLE.fullmatch(base):
            found.add(name)
    return tuple(sorted(found))


def is_among(name: str, outputs: Sequence[str]) -> bool:
    """Whether a file is one of ``outputs``, or in a folder of them."""
    return any(name.startswith(each) if each.endswith("/") else name == each for each in outputs)


def _is_manifest(path: Path) -> bool:
    with suppress(TrmcloudError):
        return bool(from_json(read_part(path, _MOST_BYTES), str(path)))
    return False


def _read_json(path: Path) -> dict[str, object]:
    with suppress(ValueError, RecursionError):
        made = json.loads(read_part(path, _MOST_BYTES))
        return made if isinstance(made, dict) else {}
    return {}
