"""A command's own metric is called by its own name, with its own value, wherever it is shown."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.e2e.test_run import RATE, script
from tests.e2e.user import User
from trmcloud.api import Home
from trmcloud.cli.page import compare, shown
from trmcloud.core.errors import NO_CHECKPOINT_CODE
from trmcloud.operations.curves.curves import metrics_files

RISES = """
import os, time
os.makedirs("out")
for step in range(1, 31):
    time.sleep(0.05)
    acc = 0.5 + step / 100 if step < 25 else 0.6
    print(f"step {step} val_acc={acc:.4f}", flush=True)
    if step % 5 == 0:
        with open(f"out/step-{step}.pt", "wb") as file:
            file.write(os.urandom(3000))
        time.sleep(1.0)
time.sleep(3.0)
"""
WRONG = re.compile(
    r"bits per byte|bpb(?!\": null|_usd\": null)|-0\.[67](?!\d*%)|of 0\b|evaluated and saved"
)
"""Other names; the number by which checkpoints are compared; a number of steps that is not known;
words for recipes. JSON may have the null fields of recipes."""


def test_it_is_named_in_every_screen_page_receipt_and_document(in_project: User) -> None:
    user = in_project
    script(user, RISES)
    own = ("--metric", "val_acc", "--best", "max", "--checkpoints", "out", "--budget", "0.30")
    told = {"run": user.run("run", "local", *RATE, *own, "--", "python3", "train.py")}
    run_id = user.only_run().run_id
    other = ("--budget", "0.10", "--name", "other", "--", "python3", "-c", "pass")
    user.run("run", "local", *RATE, *other, code=NO_CHECKPOINT_CODE)
    for words in (
        *(("status",), ("status", "--all"), ("status", run_id, "-v"), ("report",)),
        *(("report", run_id), ("status", "--all", "--json"), ("report", "--json")),
        *(("report", "--csv"), ("fetch-best", run_id, "--into", "best"), ("logs", run_id)),
        *(("report", run_id, "--html", "receipt.html"), ("stop", "--help")),
    ):
        told[" ".join(words)] = user.run(*words)
    told["report --csv"] = told["report --csv"].partition("\n")[2]  # a column is of recipes
    told["fetch --json"] = user.run("fetch-best", run_id, "--into", "again", "--json")
    told["receipt"] = (user.here / "receipt.html").read_text().split("<script")[0]
    receipt = told["receipt"]
    home = Home(user.home)
    run = home.run(run_id)
    phases = [file.phase for file in _read(home, run_id)]
    pages: dict[str, Any] = {
        "row": shown.run_json(run),
        "page": shown.whole_json(home.context, run),
        "checkpoints": [shown.checkpoint_json(each) for each in home.checkpoints(run_id)],
        "curves": shown.curves_json(home.context, run_id, phases),
        "compare": compare.compare_json(home.context, [run_id, "other"]),
        "events": [[each.kind, each.facts] for each in home.events(run_id)],
    }
    told |= {name: json.dumps(page, default=str) for name, page in pages.items()}
    wrong = {name: found for name, text in told.items() if (found := WRONG.search(text))}
    assert not wrong, {name: (found[0], told[name][max(0, found.start() - 200):found.end() + 80])
                       for name, found in wrong.items()}  # fmt: skip
    for name in (
        *("run", f"status {run_id} -v", "report", f"report {run_id}", "report --csv"),
        *("receipt", "row", "page", "compare", "events", "fetch --json", "status --all --json"),
    ):
        assert "val_acc" in told[name], name
    assert run.training is not None
    assert run.training.metric == "val_acc"
    assert run.training.best == pytest.approx(0.7)
    assert pages["curves"]["evals"]["value"][0] == pytest.approx(0.51)
    assert max(each.value or 0.0 for each in home.checkpoints(run_id)) == pytest.approx(0.7)
    rows = json.loads(told["status --all --json"])["runs"]
    [best] = [row["best"] for row in rows if row["run"] == run_id]
    assert (best["val_bpb"], best["metric"]) == (None, {"name": "val_acc", "value": 0.7})
    assert "best val_acc 0.7 at train/step-" in receipt
    assert "validation val_acc against" in receipt
    assert "its checkpoints are kept" in told["run"] or "ended normally" in told["run"]


def _read(home: Home, run_id: str) -> list[Any]:
    files = list(metrics_files(home.context, home._find(run_id)))
    for file in files:
        file.read_all()
    return files


UNSURE = """
import os, time
for loss in (3.0, 1.0, 2.0):
    with open(f"model_{loss:g}.pt", "wb") as file:
        file.write(os.urandom(3000))
    print(f"val_loss={loss}", flush=True)
    time.sleep(1.3)
"""


def test_where_it_is_not_known_which_is_best_all_that_may_be_come_home(in_project: User) -> None:
    user = in_project
    script(user, UNSURE)
    own = ("--metric", "val_loss", "--keep-best", "3", "--budget", "0.30")
    user.run("run", "local", *RATE, *own, "--", "python3", "train.py")
    text = user.run("fetch-best", "--into", "best")
    assert "unsure which checkpoint is the best: val_loss was matched to it by the order" in text
    assert text.count("fetched and verified") == 3
    assert "trmcloud_job.report(step, METRIC=value, checkpoint=PATH)" in text
    told = user.json("fetch-best", "--into", "again", "--json")
    assert told["unsure"]
    assert [rival["folder"].rpartition("/")[2] for rival in told["rivals"]] == [
        "again-2",
        "again-3",
    ]
    names = {path.name for path in user.here.glob("best*/own/*.pt")}
    assert names == {"model_3.pt", "model_1.pt", "model_2.pt"}
