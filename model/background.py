"""Work that goes on beside training: writing, hashing and syncing, which wait for the disk."""

from __future__ import annotations

import threading
from collections.abc import Callable

from trmcloud.core.contract.manifest import CheckpointFile

Work = Callable[[], tuple[CheckpointFile, ...]]


class Job:
    """``work`` in a thread of its own; without work it is done at once."""

    def __init__(self, work: Work | None) -> None:
        self.made: tuple[CheckpointFile, ...] = ()
        """What it returned, once it is done."""
        self.error: OSError | None = None
        self._thread: threading.Thread | None = None
        if work is not None:
            # It must not keep a process alive that is to end.
            self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
            self._thread.start()

    @property
    def is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def wait(self) -> None:
        if self._thread is not None:
            self._thread.join()

    def _run(self, work: Work) -> None:
        try:
            self.made = work()
        except OSError as error:
            self.error = error
        except Exception as error:  # nobody reads a thread's own: it is told as a failed write
            self.error = OSError(f"{type(error).__name__}: {error}")
