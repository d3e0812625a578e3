"""TensorBoard in this process, on loopback: it ends with it."""

from __future__ import annotations

import logging
from pathlib import Path

from trmcloud.core.errors import UsageError
from trmcloud.core.plain_text import one_line


def serve_board(folder: Path, port: int) -> str:
    """Its address.

    Raises:
        UsageError: it cannot listen there.
    """
    from tensorboard import program

    logging.getLogger("tensorboard").setLevel(logging.ERROR)
    board = program.TensorBoard()
    board.configure(
        logdir=str(folder), host="127.0.0.1", port=port, reload_interval=2.0, load_fast="false"
    )
    try:
        return str(board.launch()).rstrip("/")
    except program.TensorBoardServerException as error:
        raise UsageError(one_line(str(error)), next_step="--port with another") from None
