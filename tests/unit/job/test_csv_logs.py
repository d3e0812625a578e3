"""CSV logs that a script writes are read as they grow."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trmcloud.pod.job.csv_logs import CsvLogs, reading_of_row
from trmcloud.pod.job.readings import LogFiles

ULTRALYTICS = "                  epoch,      train/box_loss,  metrics/mAP50-95(B)\n"
"""As its earlier releases pad their columns."""
ULTRALYTICS_8_4 = """\
epoch,time,train/box_loss,train/cls_loss,train/dfl_loss,metrics/precision(B),metrics/recall(B),\
metrics/mAP50(B),metrics/mAP50-95(B),val/box_loss,val/cls_loss,val/dfl_loss,lr/pg0,lr/pg1,lr/pg2
1,0.432263,2.02584,1.62616,1.21956,0,0,0,0,0.35334,1.52219,0.20338,0.0005,0.0005,0.0005
2,1.21486,4.48927,2.85232,2.7295,0,0,0,0,0.35334,1.52219,0.20338,0.001005,0.001005,0.001005
"""
"""results.csv of yolo11n.yaml on eight squares, as ultralytics 8.4.190 wrote it."""


def test_rows_of_ultralytics_are_read_once_each(tmp_path: Path) -> None:
    logs = CsvLogs(tmp_path, 0.0)
    path = tmp_path / "runs" / "train" / "results.csv"
    path.parent.mkdir(parents=True)
    path.write_text(ULTRALYTICS + "  1,  2.5,  0.125\n  2,  2.25,  0.2")
    [first] = logs.take(0.0)
    assert (first.step, first.epoch) == (None, 1)
    maps = dict.fromkeys(("metrics/mAP50-95(B)", "metrics/mAP50-95"), 0.125)
    assert first.metrics == {"train/box_loss": 2.5, **maps}
    with open(path, "a") as file:
        file.write("5\n")
    assert [(each.epoch, each.metrics["metrics/mAP50-95(B)"]) for each in logs.take(10.0)] == [
        (2, 0.25)
    ]
    assert logs.take(20.0) == []
    assert logs.seen == 2


def test_rows_that_are_read_together_are_spread_over_the_time_since_the_read_before(
    tmp_path: Path,
) -> None:
    """Where this is read late, a value of an earlier epoch must not be that of the last save."""
    logs, path = CsvLogs(tmp_path, 1000.0), tmp_path / "results.csv"

    def written_at(at: float, text: str) -> list[float | None]:
        with open(path, "a") as file:
            file.write(text)
        os.utime(path, (at, at))
        return [reading.at for reading in logs.take(at)]

    assert written_at(1060.0, "epoch,loss\n1,2.5\n2,2.25\n3,2.0\n") == [1020.0, 1040.0, 1060.0]
    assert written_at(1080.0, "4,1.5\n") == [1080.0]
    assert written_at(1120.0, "5,1.5\n6,1.25\n") == [1100.0, 1120.0]


def test_results_of_ultralytics_as_it_writes_them_today(tmp_path: Path) -> None:
    logs = CsvLogs(tmp_path, 0.0)
    path = tmp_path / "runs" / "detect" / "train" / "results.csv"
    path.parent.mkdir(parents=True)
    path.write_text(ULTRALYTICS_8_4)
    first, second = logs.take(0.0)
    assert (first.epoch, first.step, second.epoch) == (1, None, 2)
    assert second.metrics["val/cls_loss"] == 1.52219
    assert second.metrics["metrics/mAP50-95"] == 0.0
    assert second.metrics["time"] == 1.21486


def test_a_log_written_anew_with_more_columns_goes_on_after_as_many_rows(tmp_path: Path) -> None:
    """As Lightning's CSVLogger does once a new name is logged."""
    logs, path = CsvLogs(tmp_path, 0.0), tmp_path / "metrics.csv"
    path.write_text("epoch,step,train_loss\n0,9,2.5\n")
    assert [each.step for each in logs.take(0.0)] == [9]
    path.write_text("epoch,step,train_loss,val_loss\n0,9,2.5,\n0,19,,1.5\n")
    [new] = logs.take(10.0)
    assert (new.step, new.epoch, new.metrics) == (19, 0, {"val_loss": 1.5})


LIGHTNING_2_6 = """\
epoch,step,train_loss,val_loss
0,4,17.107540130615234,
0,9,19.093219757080078,
39,3999,0.006823941599577665,
39,3999,,0.020251363515853882
"""
"""metrics.csv of CSVLogger, rows left out, as lightning 2.6.6 wrote it; its last checkpoint is
epoch=39-step=4000.ckpt."""


def test_metrics_of_lightning_as_it_writes_them_today(tmp_path: Path) -> None:
    logs = CsvLogs(tmp_path, 0.0)
    path = tmp_path / "logs" / "lightning_logs" / "version_0" / "metrics.csv"
    path.parent.mkdir(parents=True)
    path.write_text(LIGHTNING_2_6)
    assert [(each.step, each.epoch, *each.metrics.items()) for each in logs.take(0.0)] == [
        (4, 0, ("train_loss", 17.107540130615234)),
        (9, 0, ("train_loss", 19.093219757080078)),
        (3999, 39, ("train_loss", 0.006823941599577665)),
        (3999, 39, ("val_loss", 0.020251363515853882)),
    ]


TIMM_1_1 = """\
epoch,train_loss,eval_loss,eval_top1,eval_top5,lr
0,0.7269929001728693,0.6924551576375961,50.0,100.0,1e-05
1,0.7206483334302902,0.6952940374612808,43.75,100.0,0.010008
"""
"""summary.csv in output/train/20261126-160740-test_resnet-64, as train.py of timm wrote it (commit
aa4b5850 of 2026)."""


def test_the_summary_of_timm_as_it_writes_it_today(tmp_path: Path) -> None:
    logs, path = CsvLogs(tmp_path, 0.0), tmp_path / "summary.csv"
    path.write_text(TIMM_1_1)
    first, second = logs.take(0.0)
    assert (first.epoch, second.epoch) == (0, 1)
    assert (second.metrics["eval_loss"], second.metrics["eval_top1"]) == (0.6952940374612808, 43.75)


def test_what_stood_there_before_and_links_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    path.write_text("epoch,loss\n1,2.0\n")
    work = tmp_path / "work"
    work.mkdir()
    logs = CsvLogs(work, 0.0)
    (work / "results.csv").symlink_to(path)
    assert logs.take(0.0) == []
    old = CsvLogs(tmp_path, 0.0)
    assert (old.take(0.0), old.seen) == ([], 0)
    with open(path, "a") as file:
        file.write("2,1.0\n")
    assert [each.epoch for each in old.take(10.0)] == [2]


@pytest.mark.parametrize("cells", [[], ["1"], ["1", "", "x"], ["1", "2", "3", "4"]])
def test_a_row_that_has_no_numbers_or_is_of_another_header_says_nothing(cells: list[str]) -> None:
    assert reading_of_row(["epoch", "loss", "note"], cells, 1.0) is None


def test_binary_content_costs_nothing(tmp_path: Path) -> None:
    logs = CsvLogs(tmp_path, 0.0)
    (tmp_path / "results.csv").write_bytes(os.urandom(4096) + b"\n\0,\n")
    assert all(each.metrics for each in logs.take(0.0))


class FakeProcessor:
    """Processor time in seconds: each look at the folder takes ``look_s``, two readings."""

    def __init__(self, look_s: float) -> None:
        self._look_s, self._readings = look_s, 0

    def used_s(self) -> float:
        self._readings += 1
        return self._look_s * (self._readings // 2)


def test_a_dear_look_for_logs_is_followed_by_a_long_pause(tmp_path: Path) -> None:
    files = LogFiles(tmp_path, lambda name: name == "log", 4, FakeProcessor(0.25).used_s)
    (tmp_path / "log").touch()
    assert files.as_of(0.0, 5.0) == [tmp_path / "log"]
    (tmp_path / "log").unlink()
    assert files.as_of(49.9, 5.0) == [tmp_path / "log"], "0.25 s is 0.5 % of 50 s"
    assert files.as_of(50.0, 5.0) == []


def test_a_cheap_look_is_repeated_as_often_as_is_asked(tmp_path: Path) -> None:
    files = LogFiles(tmp_path, lambda name: name == "log", 4, FakeProcessor(0.001).used_s)
    assert files.as_of(0.0, 5.0) == []
    (tmp_path / "log").touch()
    assert files.as_of(0.25, 5.0) == []
    assert files.as_of(0.25, 0.0) == [tmp_path / "log"]


def test_one_slow_look_alone_is_followed_by_no_long_pause(tmp_path: Path) -> None:
    """As where the first one reads the folder from the disk, or the machine was busy."""
    used_s = iter([0.0, 0.25, 0.25, 0.251, 0.251, 0.252, 0.252, 1.252, 1.252, 1.253])
    files = LogFiles(tmp_path, lambda name: name == "log", 4, used_s.__next__)
    (tmp_path / "log").touch()
    looked = []
    for at in (0.0, 0.1, 0.25, 0.5, 0.75):
        files.paths = []
        looked.append(files.as_of(at, 0.0) != [])
    assert looked == [True, False, True, True, True]
