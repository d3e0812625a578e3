"""Numbers in the lines that scripts print: the metric, a step, or neither."""

from __future__ import annotations

import pytest

from trmcloud.core.contract.command import Command
from trmcloud.pod.job.metric_order import OF_BATCH, OF_HELD_OUT, OF_TRAINING, TEXT
from trmcloud.pod.job.readings import Reading, Readings, number_of, of_object, step_of


def reader(metric: str) -> Readings:
    return Readings(Command(("python", "train.py"), metric=metric))


def values(metric: str, *lines: str) -> list[float]:
    reads = reader(metric)
    found: list[Reading | None] = []
    for line in lines:
        read = reads.read(line.encode())
        found += [reads.late, read]
        reads.late = None
    return [each.metrics[metric] for each in found if each and metric in each.metrics]


@pytest.mark.parametrize(
    "line",
    [
        " [==>..] Step: 27ms | Tot: 3s12ms | Loss: 0.300",
        "step 15% of the way",
        "Steps: 3 it/s",
        "iter 12 s, loss 0.5",
    ],
)
def test_a_number_before_a_unit_is_no_step(line: str) -> None:
    assert step_of(line)[0] is None


@pytest.mark.parametrize(
    ("line", "step", "counter"),
    [
        ("step 27 loss 0.5", 27, "step"),
        ("global_step=1,200 | x", 1200, "step"),
        ("iteration 30: val loss 2.0", 30, "iter"),
        ("[40]\tvalid-rmse:0.5", 40, ""),
        ("step 100 mse 0.5", 100, "step"),
        ("timestep 7 seen", 7, "timestep"),
    ],
)
def test_steps_have_the_word_of_their_counter(line: str, step: int, counter: str) -> None:
    assert step_of(line) == (step, counter)


def test_a_line_without_a_step_has_no_counter() -> None:
    assert step_of("val_loss 0.5") == (None, "")


def test_the_counters_of_a_log_are_collected() -> None:
    reads = reader("val_loss")
    reads.read(b"Epoch 1 | iter 39 | loss train: 0.250, val: n/a")
    reads.read(b"step 20 val_loss 0.5")
    assert reads.counters == {"iter", "step"}


def test_a_bar_before_its_first_step_tells_nothing() -> None:
    line = "Epoch 0 - loss: 0.0000:   0%|    | 0/24 [00:00<?, ?it/s]"
    assert values("loss", line, "Epoch 1 - loss: 0.5:  50%|##  | 12/24 [00:01<00:01]") == [0.5]


def test_a_printed_configuration_is_no_table() -> None:
    lines = ("callbacks:", "  monitor: val_acc", "  patience: 100", "  mode: max")
    assert values("val_acc", *lines) == []


def test_a_table_needs_two_rows_and_has_both() -> None:
    assert values("val_loss", "epoch val_loss", "1 0.5") == []
    assert values("val_loss", "epoch val_loss", "1 0.5", "2 0.4", "3 0.3") == [0.5, 0.4, 0.3]


@pytest.mark.parametrize(
    ("text", "value"),
    [("0,25", 0.25), ("12,5", 12.5), ("1,250", 1250.0), ("1,250.5", 1250.5), ("0.5", 0.5)],
)
def test_commas_divide_thousands_or_are_decimal(text: str, value: float) -> None:
    assert number_of(text) == value
    assert values("val_loss", f"step 3 val_loss: {text} done") == [value]


def test_a_list_of_whole_numbers_has_no_value() -> None:
    assert values("val_loss", "val_loss 1,2,3") == []


def test_numbers_in_strings_of_json_are_read() -> None:
    assert of_object({"step": 3, "val_loss": "0.25", "name": "run 7"}).metrics == {"val_loss": 0.25}


def test_of_two_losses_in_a_line_the_held_out_one_is_the_loss() -> None:
    reads = reader("loss")
    read = reads.read(b"epoch 3 - train loss: 0.333 - valid loss: 1.000")
    assert read is not None
    assert (read.metrics["loss"], read.source) == (1.0, OF_HELD_OUT)


@pytest.mark.parametrize(
    ("metric", "line", "source"),
    [
        ("loss", "Training Results - Epoch: 1 Avg loss: 1.9", OF_TRAINING),
        ("loss", "Validation Results - Epoch: 1 Avg loss: 2.3", OF_HELD_OUT),
        ("loss", "epoch 1 loss: 2.3", TEXT),
        ("val_loss", "Training epoch 1 val_loss: 2.3", TEXT),
        ("train_loss", "after validation train_loss: 2.3", TEXT),
    ],
)
def test_the_split_that_a_line_names_is_part_of_the_name(
    metric: str, line: str, source: int
) -> None:
    read = reader(metric).read(line.encode())
    assert read is not None
    assert read.source == source


def test_the_mean_after_the_batches_of_an_evaluation_is_of_the_held_out_split() -> None:
    lines = reader("Acc@1")
    read = [
        lines.read(line.encode())
        for line in (
            "Epoch: [0][3/4]  Loss 6.6e+00 (6.7e+00)  Acc@1  12.50 ( 18.75)",
            "Test: [1/2]  Loss 6.6e+00 (6.6e+00)  Acc@1  31.25 ( 31.25)",
            "Test: [2/2]  Loss 6.6e+00 (6.6e+00)  Acc@1  18.75 ( 25.00)",
            " *   Acc@1 25.000 Acc@5 54.167",
            "Epoch: [1][1/4]  Loss 5.6e+00 (5.6e+00)  Acc@1  25.00 ( 25.00)",
        )
    ]
    told = [(each.metrics["Acc@1"], each.source) for each in read if each is not None]
    batches = [(31.25, OF_BATCH), (18.75, OF_BATCH)]
    assert told == [(12.5, TEXT), *batches, (25.0, OF_HELD_OUT), (25.0, TEXT)]


@pytest.mark.parametrize("line", ["epoch 0 loss 0.5", "iter 20: loss 0.5", "[2/8] loss 0.5"])
def test_a_line_of_training_after_an_evaluation_is_not_its_mean(line: str) -> None:
    lines = reader("loss")
    lines.read(b"Test: [2/2] loss 0.4")
    read = lines.read(line.encode())
    assert read is not None
    assert read.source == TEXT


def test_a_line_of_a_progress_bar_is_redrawn() -> None:
    readings = Readings(Command(("python", "train.py"), metric="PSNR"))
    bar = b"[LR to SR] PSNR: 22.1624 dB SSIM: 0.9:  53%|#####   | 8/15 [00:00<00:00, 55.88it/s]"
    for line, is_redrawn in ((bar, True), (b"PSNR: 22.1624 dB", False)):
        reading = readings.read(line)
        assert reading is not None
        assert (reading.metrics, reading.is_redrawn) == ({"PSNR": 22.1624}, is_redrawn)
