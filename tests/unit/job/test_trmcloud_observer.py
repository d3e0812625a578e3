"""The observer in real Python processes: what it notes, and that a script sees nothing of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from trmcloud.pod.job import trmcloud_observer
from trmcloud.pod.job.readings import mark_in
from trmcloud.pod.job.trmcloud_observer import ENV_LOG, ENV_OBSERVED, MARK_END


class Seen(NamedTuple):
    code: int
    output: bytes
    lines: list[dict[str, Any]]

    @property
    def text(self) -> str:
        """The output without marks."""
        return b"".join(self.pieces[::2]).decode()

    @property
    def pieces(self) -> list[bytes]:
        """Text and marks in turns."""
        found, rest = [b""], self.output
        while rest:
            begin = rest.find(trmcloud_observer.MARK_BEGIN)
            if begin < 0:
                found[-1] += rest
                break
            end = rest.index(MARK_END, begin + 2) + 1
            found[-1] += rest[:begin]
            found += [rest[begin:end], b""]
            rest = rest[end:]
        return found

    def state_of(self, text: str) -> tuple[int, int] | None:
        """The state that the mark after a line of the output bears."""
        pieces = self.pieces
        at = next(n for n, piece in enumerate(pieces[::2]) if text.encode() in piece)
        mark = mark_in(pieces[2 * at + 1])
        return mark.state if mark is not None and mark.is_exact else None

    def saved(self, name: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if Path(str(line.get("saved"))).name == name]

    def told(self, metric: str) -> list[tuple[float, int | None, list[int] | None]]:
        return [
            (line["metrics"][metric], line["step"], line["state"])
            for line in self.lines
            if metric in line.get("metrics", {})
        ]


def observed(
    tmp_path: Path, code: str, *options: str, python: str = sys.executable, **environment: str
) -> Seen:
    """Run one script with the observer in place, as a run does."""
    place = tmp_path / "on-path"
    place.mkdir(exist_ok=True)
    module = Path(trmcloud_observer.__file__)
    (place / "sitecustomize.py").write_bytes(module.read_bytes())
    notes = tmp_path / "observed.jsonl"
    notes.unlink(missing_ok=True)
    (tmp_path / "train.py").write_text(textwrap.dedent(code))
    read, write = os.pipe()
    paths = os.pathsep.join([str(place), *filter(None, [environment.pop("PYTHONPATH", "")])])
    child = subprocess.Popen(
        [python, *options, "train.py"],
        cwd=tmp_path,
        stdout=write,
        stderr=subprocess.STDOUT,
        env={
            **os.environ,
            **environment,
            "PYTHONPATH": paths,
            "PYTHONUNBUFFERED": "1",
            ENV_OBSERVED: str(notes),
            ENV_LOG: str(os.fstat(write).st_ino),
        },
    )
    os.close(write)
    with open(read, "rb") as pipe:
        output = pipe.read()
    lines = notes.read_text().splitlines() if notes.exists() else []
    return Seen(child.wait(timeout=60), output, list(map(json.loads, lines)))


TORCH = """\
    import os, shutil, time, torch
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    def train(steps):
        for _ in range(steps):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    print("val_loss 9.5")
    train(3)
    print("val_loss 2.5")
    torch.save(model.state_dict(), "last.pt")
    time.sleep(0.02)
    train(2)
    torch.save(model.state_dict(), "next.tmp")
    os.replace("next.tmp", "next.pt")
    shutil.copyfile("last.pt", "best.pt")
    print("val_loss 1.5")
    if os.fork() == 0:  # its weights are not its parent's
        torch.save(model.state_dict(), "child.pt")
        os._exit(0)
    os.wait()
    model.load_state_dict(torch.load("last.pt"))
    torch.save(model.state_dict(), "loaded.pt")
"""


def test_values_and_files_of_the_same_weights_have_the_same_state(tmp_path: Path) -> None:
    seen = observed(tmp_path, TORCH)
    assert seen.code == 0, seen.text
    assert seen.text == "val_loss 9.5\nval_loss 2.5\nval_loss 1.5\n"
    (last,) = seen.saved("last.pt")
    (following,) = seen.saved("next.tmp")
    assert [last["state"][1], following["state"][1]] == [3, 5]
    assert last["since"] <= (tmp_path / "last.pt").stat().st_mtime + 0.02 <= last["until"] + 0.04
    moves = [[Path(p).name for p in line["moved"]] for line in seen.lines if "moved" in line]
    assert moves == [["next.tmp", "next.pt"], ["last.pt", "best.pt"]]
    assert not seen.saved("best.pt"), "a copy has the state of its source"
    assert (seen.state_of("val_loss 9.5") or (0, 1))[1] == 0, "before its first step"
    assert seen.state_of("val_loss 2.5") == tuple(last["state"])
    assert seen.state_of("val_loss 1.5") == tuple(following["state"])
    assert [line["state"] for line in seen.saved("child.pt")] == [None]
    assert [line["state"][1] for line in seen.saved("loaded.pt")] == [6]


def test_what_is_imported_first_is_noted_and_no_bytecode_counts_as_saved(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "__init__.py").touch()
    (tmp_path / "own" / "inner.py").touch()
    code = """\
        import own.inner
        import os, wave
        name = "step_3.orbax-checkpoint-tmp-17"
        os.mkdir(name)
        os.rename(name, "step_3")
    """
    seen = observed(tmp_path, code, PYTHONDONTWRITEBYTECODE="")
    begun = {line["importing"] for line in seen.lines if "importing" in line}
    assert begun & {"own", "own.inner", "os", "wave"} == {"own"}, begun
    assert (tmp_path / "own" / "__pycache__").is_dir()
    assert [Path(line["saved"]).name for line in seen.lines if "saved" in line] == ["step_3"]


def test_joblib_says_what_it_writes(tmp_path: Path) -> None:
    pytest.importorskip("joblib")
    seen = observed(tmp_path, "import joblib\njoblib.dump([1], 'model.joblib')\n")
    ends = [line["until"] for line in seen.lines if line.get("saved", "").endswith("model.joblib")]
    assert any(each is not None for each in ends), seen.lines


TRACKERS = """\
    import sys, types
    def module(name, **what):
        made = types.ModuleType(name)
        made.__dict__.update(what)
        return made
    from torch.utils.tensorboard import SummaryWriter
    import numpy, torch
    writer = SummaryWriter("runs")
    writer.add_scalar("val/loss", torch.tensor(0.5), 10)
    writer.add_scalars("acc", {"val": numpy.float32(0.25)}, global_step=11)
    import wandb
    run = wandb.init(mode="offline", dir=".", settings=wandb.Settings(silent=True))
    run.log({"val_loss": 0.75, "picture": object, "flag": True}, step=12)
    wandb.log({"nested": {"a": 1}, "val_loss2": 0.5})
    run.finish()
    for step in range(2000):
        writer.add_scalar("loss", step, step)
    torch.save({}, "last.pt")
    for step in range(2000, 2010):
        writer.add_scalar("loss", step, step)
"""


def test_metrics_are_those_that_trackers_are_given(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    pytest.importorskip("tensorboard")
    seen = observed(tmp_path, TRACKERS)
    assert seen.told("val/loss") == [(0.5, 10, None)], seen.text
    assert seen.told("acc/val") == [(0.25, 11, None)]
    assert seen.told("val_loss") == [(0.75, 12, None)]
    assert seen.told("val_loss2") == [(0.5, None, None)]
    assert all("flag" not in line.get("metrics", {}) for line in seen.lines)
    steps = [step for _, step, _ in seen.told("loss")]
    assert len(steps) < 100, "now and then"
    assert {0, 1999, 2009} <= set(steps), "and before a file, and at the end"


def test_a_script_sees_nothing_of_it(tmp_path: Path) -> None:
    code = """\
        import inspect, pickle, torch, safetensors.torch
        from torch.utils.tensorboard import SummaryWriter
        for function in (torch.save, torch.nn.Module.load_state_dict, SummaryWriter.add_scalar,
                         safetensors.torch.save_file):
            print(function.__module__, function.__qualname__, inspect.signature(function),
                  len(inspect.getsource(function)), function.__doc__ is not None)
        assert pickle.loads(pickle.dumps(torch.save)) is torch.save
        assert pickle.loads(pickle.dumps(SummaryWriter.add_scalar)) is SummaryWriter.add_scalar
        print(vars(torch.serialization.__loader__))
        print(torch.serialization.__spec__.origin)
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 3)
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(5):
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()
        print([each.tolist() for each in model.parameters()])
        print(sorted(optimizer.state_dict()), optimizer.__dict__.keys())
        try:
            torch.save(model, 3)
        except AttributeError as error:
            print(error)
    """
    seen = observed(tmp_path, code)
    assert seen.code == 0, seen.text
    plain = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert seen.text == plain.stdout + plain.stderr


def test_the_users_own_sitecustomize_runs(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import builtins; builtins.mine = 7\n")
    seen = observed(tmp_path, "print(mine)\n", PYTHONPATH=str(own))
    assert seen.text == "7\n"


@pytest.mark.parametrize("option", ["-I", "-S"])
def test_a_python_without_it_tells_nothing(tmp_path: Path, option: str) -> None:
    seen = observed(tmp_path, "print('here')\n", option)
    assert (seen.text, seen.lines) == ("here\n", [])


def test_marks_are_written_to_the_runs_log_alone(tmp_path: Path) -> None:
    code = TORCH.replace(
        "    import os,", '    import os; os.dup2(os.open("own.log", 577), 1)\n    import os,', 1
    )
    seen = observed(tmp_path, code)
    assert seen.code == 0, seen.text
    assert (tmp_path / "own.log").read_text() == "val_loss 9.5\nval_loss 2.5\nval_loss 1.5\n"
