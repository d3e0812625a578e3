"""Errors of the data that whoever runs the same command again meets differently."""

from __future__ import annotations

from trmcloud.core.errors import DataError


class PassingError(DataError):
    """What the same command may overcome later, with nothing changed but time or room."""

    again = True


class DamagedFile(DataError):
    """What was downloaded is not what its name says: ``where`` is to be fetched anew."""
