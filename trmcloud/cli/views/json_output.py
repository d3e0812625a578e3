"""JSON on standard output: one document, or lines of them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from trmcloud.cli.views.streams import documents_out
from trmcloud.io.redaction import mask_tokens
from trmcloud.operations.encoding import as_object

_printed: list[str] = []
"""The ``schema`` of each document of this process; of lines, once each."""


def print_document(document: Any) -> None:
    """Print the one document of a command."""
    _printed.append(document.schema)
    print(mask_tokens(json.dumps(as_object(document), indent=1)), file=documents_out(), flush=True)


def print_answer(document: Any, lines: Iterable[str], *, as_json: bool) -> None:
    """Print the one document of a command with ``--json``, else its lines for people."""
    if as_json:
        print_document(document)
        return
    for line in lines:
        print(line)


def print_line(document: Any) -> None:
    """Print one of several documents, each of which is a line."""
    if document.schema not in _printed:
        _printed.append(document.schema)
    _lines.append(True)
    print(mask_tokens(json.dumps(as_object(document))), file=documents_out(), flush=True)


_lines: list[bool] = []


def print_failure(code: str, exit_code: int, message: str, next_step: str) -> None:
    """Print the document of an error, unless the command's one document was printed before it."""
    from trmcloud.operations.views import Failure

    if _printed and not _lines:
        return
    failure = Failure(code=code, exit_code=exit_code, message=message, next=next_step or None)
    (print_line if _lines else print_document)(failure)


def begin() -> None:
    """Forget what earlier commands of this process printed."""
    _printed.clear()
    _lines.clear()
