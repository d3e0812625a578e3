"""``trmcloud``, but what RunPod's lists lack for seconds, not minutes, is proven to be gone.

python -m tests.e2e.impatient status
"""

from __future__ import annotations

from dataclasses import replace

import trmcloud.providers.registry  # noqa: F401  fills the traits
from trmcloud.cli.main import main
from trmcloud.core.catalog import providers

ABSENT_S = 2.0

if __name__ == "__main__":
    traits = providers.TRAITS
    traits["runpod"] = replace(traits["runpod"], absent_s=ABSENT_S, absent_deleted_s=ABSENT_S)
    main()
