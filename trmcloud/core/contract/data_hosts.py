"""Where data is really fetched from, on this machine and on a pod.

By itself, so that a catalogue of data sets is read without the rest of the contract.
"""

from __future__ import annotations

ENV_DATA_HOSTS = "TRMCLOUD_DATA_HOSTS"
"""``host=base`` pairs with spaces between: where a data host's files are really fetched from."""
