"""Writes trmcloud/cli/completions.json: the options of every command, as the shell completes them.

Run it after a change to a command's options; ``tests/unit/cli/test_completion.py`` says when it is
due.
"""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from trmcloud.cli.completion import TABLE
    from trmcloud.cli.main import completion_table

    TABLE.write_text(completion_table(), encoding="utf-8")


if __name__ == "__main__":
    main()
