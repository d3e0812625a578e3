"""The part of ``wiring`` that a press of Tab needs: names of runs and of providers, and nothing
that takes long to import."""

from __future__ import annotations

import os
from collections.abc import Sequence

from trmcloud.adapters.ledger.names import RunNames, read_names
from trmcloud.adapters.ledger.place import ledger_url
from trmcloud.app.home import home_dir


def run_names() -> Sequence[RunNames]:
    """The runs of this home, the newest first; none where a database would have to be asked."""
    home = home_dir(os.environ)
    if ledger_url(home, os.environ):
        return ()
    return read_names(home / "ledger.db")


def provider_names() -> Sequence[str]:
    """Providers that may be named with ``--provider``."""
    import trmcloud.providers.registry  # noqa: F401  fills the traits
    from trmcloud.core.catalog.providers import load_all, rentable

    load_all()
    return rentable()
