"""For how long a kill layer counts that was seen to work."""

from __future__ import annotations

from tests.unit.core.test_exposure import NOW, RUNPOD, verified
from trmcloud.core.control.exposure import exposure_of

DAY_S = 24 * 3600.0


def test_a_layer_counts_for_thirty_days_and_not_a_moment_longer() -> None:
    for age_s, counted in ((0.0, True), (30 * DAY_S, True), (30 * DAY_S + 0.5, False)):
        exposure = exposure_of(RUNPOD, verified("agent", age_s=age_s), NOW)
        assert (exposure.verified == ("agent",)) == counted
        assert ("agent" in exposure.unverified) != counted
