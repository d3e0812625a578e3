"""What a bucket costs, how fast it is, and for how long it grants: all that plans and budgets need.

By itself, so that they are made without the rest of the contract.
"""

from __future__ import annotations

AFTER_HARD_STOP_S = 60.0
"""Grants end so long after it. A pod's clock may be slow, and its last answer late; nothing runs
there any more by then."""
LONGEST_GRANT_S = 7 * 86_400.0
"""SigV4 signs nothing for longer."""
BUCKET_BYTES_PER_S = 50e6
"""From a pod to a bucket, when nothing was measured."""
BUCKET_MICROS_PER_GB_MONTH = 23_000
"""S3 Standard, us-east-1, first 50 TB: $0.023 per GB and month, read 2026-11-21."""
BUCKET_PRICE_AS_OF = "2026-11-21"
