"""How a preparation can end that the same command goes on from."""

from __future__ import annotations

from trmcloud.core.errors import DataError


class PassingError(DataError):
    """What the same command may overcome later, with nothing changed but time or room."""

    again = True


class DamagedFile(DataError):
    """What was downloaded is not what its name says: ``where`` is to be fetched anew."""


class Stopped(Exception):
    """Told to stop; what is done stays."""
