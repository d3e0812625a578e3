"""Writes docs/json/: the JSON Schema of each document that a command prints with ``--json``.

Run it after a change to ``trmcloud/operations/views.py``; ``tests/unit/cli/test_documents.py`` says
when it is due.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
FOLDER = HERE / "docs" / "json"


def main() -> None:
    sys.path.insert(0, str(HERE))
    from trmcloud.operations.schemas import all_schemas, file_name

    FOLDER.mkdir(exist_ok=True)
    made = {file_name(name): schema for name, schema in all_schemas().items()}
    for path in FOLDER.glob("*.schema.json"):
        if path.name not in made:
            path.unlink()
    for name, schema in made.items():
        (FOLDER / name).write_text(json.dumps(schema, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
