from __future__ import annotations

from pathlib import Path

import pytest

import trmcloud.adapters.prices as prices
from trmcloud.core.calibrated import FITTED, FITTED_SIGMA, reach_of
from trmcloud.core.calibration import Calibration, calibrate, parse_rows
from trmcloud.core.errors import UsageError
from trmcloud.core.hardware import GPUS

TABLE = Path(prices.__file__).parent / "data" / "calibration.csv"
HEADER = next(line for line in TABLE.read_text().splitlines() if not line.startswith("#"))


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    return calibrate(parse_rows(TABLE.read_text(), "calibration.csv"))


def test_unseen_rows_are_predicted_within_the_promised_errors(calibration: Calibration) -> None:
    assert calibration.median_error <= 0.12
    assert calibration.worst_error <= 0.30
    assert {r.row.gpu for r in calibration.residuals} == {"A100-80GB-SXM", "H100-SXM"}


def test_a_gpu_with_one_row_stands_apart_and_fits_nothing(calibration: Calibration) -> None:
    assert [r.row.gpu for r in calibration.apart] == ["B200"]
    assert "B200" not in calibration.parameters.reached


def test_the_constants_are_what_the_table_gives(calibration: Calibration) -> None:
    fitted = calibration.parameters
    assert dict(FITTED.reached) == pytest.approx(dict(fitted.reached), rel=0.01)
    assert FITTED[1:] == pytest.approx(fitted[1:], rel=0.02)
    assert pytest.approx(calibration.sigma, rel=0.02) == FITTED_SIGMA


def test_less_evidence_means_a_wider_interval() -> None:
    seen, sibling, other, one_row = (
        reach_of(GPUS[sku]).sigma for sku in ("H100-SXM", "H200", "L40S", "B200")
    )
    assert seen < sibling < other < one_row


def test_the_guides_700k_tokens_per_second_are_refused_by_name() -> None:
    row = "GPT 350M,354,,24,1024,50304,1024,H100-SXM,1,bf16,,700000,a guide"
    with pytest.raises(UsageError, match=r"GPT 350M: 700,000 tokens/s on one H100-SXM is 17\d%"):
        parse_rows(f"{HEADER}\n{row}\n", "mine.csv")
    fp8 = "GPT 350M,354,,24,1024,50304,1024,H100-SXM,1,fp8,,900000,a guide"
    with pytest.raises(UsageError, match="impossible"):
        parse_rows(f"{HEADER}\n{fp8}\n", "mine.csv")


@pytest.mark.parametrize(
    "row",
    [
        "GPT,354,,24,1024,50304,1024,H100,1,bf16,,1000,x",
        "GPT,354,,24,1024,50304,1024,A100-80GB-SXM,1,fp8,,1000,x",
        "GPT,354,,24,1024,50304,1024,H100-SXM,1,bf16,,-5,x",
        "GPT,many,,24,1024,50304,1024,H100-SXM,1,bf16,,1000,x",
    ],
)
def test_rows_that_make_no_sense_are_refused_by_line(row: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_rows(f"{HEADER}\n{row}\n", "mine.csv")
    assert "line 2" in caught.value.where
