"""Checks of a trial from its observations, and the line that follows. No trial is run."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trmcloud.cli.commands.try_command import packages_to_rent
from trmcloud.cli.main import load_command
from trmcloud.cli.views.trial import check_lines, record_lines
from trmcloud.core.contract.command import Command
from trmcloud.core.contract.records import ContractError, dump, load
from trmcloud.operations.commands.trial import Trial, key_of
from trmcloud.operations.commands.trial_checks import (
    NAMES,
    Attempt,
    Check,
    Facts,
    MissingFile,
    Observed,
    RequestedMachine,
    Result,
    SeenKey,
    SeenSave,
    best_key,
    checkpoints_place,
    differences,
    failed,
    is_of_held_out,
    judge,
    numbers_in,
    requirement_names,
    run_line,
)
from trmcloud.operations.commands.trial_facts import facts_of, resume_flag, shadow
from trmcloud.operations.sending.working_tree import look_at, why_left_out
from trmcloud.pod.job.readings import Reading, Readings

COMMAND = Command(("python", "train.py"))
SAVES = (SeenSave("out/step-10.pt", 300_000, 10), SeenSave("out/step-20.pt", 310_000, 20))
KEYS = (
    SeenKey("train_loss", 20, 2.5, "train_loss=([0-9.]+)"),
    SeenKey("val_loss", 2, 2.7, "val_loss=([0-9.]+)"),
)
RAN = Attempt(
    ran_s=60.0,
    lines=20,
    first_step=1,
    last_step=20,
    step_s=3.0,
    memory_bytes=2_000_000_000,
    keys=KEYS,
    saves=SAVES,
    told=True,
    left_s=1.5,
    saved_s=1.2,
)


def facts(first: Attempt = RAN, command: Command = COMMAND, **more: object) -> Facts:
    given = {name: more.pop(name) for name in list(more) if name in _OF_FACTS}
    observed = Observed(first, **{"pythons": ("/usr/bin/python3",), **more})  # type: ignore[arg-type]
    return Facts(command, observed, files=12, **given)  # type: ignore[arg-type]


_OF_FACTS = {
    "data", "missing", "outside_reads", "outside_writes", "own_modules", "unnamed", "requirements",
    "hub_reads", "most_bytes", "online", "modules",
}  # fmt: skip


def check(name: str, of: Facts) -> Check:
    return dict(zip(NAMES, judge(of), strict=True))[name]


def test_a_training_that_does_all_passes_all_but_what_needs_more() -> None:
    made = judge(facts())
    assert [each.name for each in made] == list(NAMES)
    assert failed(made) == ()
    unknown = [each.name for each in made if each.result is Result.UNKNOWN]
    assert unknown == ["resumes", "gpu"]
    assert check("pace", facts()).evidence == (
        "3 s a step (steps 1 to 20); 2.00 GB of this machine's memory"
    )
    assert check("stops", facts()).evidence == "saved 1.2 s after SIGTERM, exited after 1.5 s"


@pytest.mark.parametrize(
    ("first", "result", "said"),
    [
        (Attempt(code=1, ran_s=0.4), "failed", "it ended with code 1 after 0.4 s"),
        (Attempt(code=-9, ran_s=4.0), "failed", "it ended with signal 9 after 4.0 s"),
        (Attempt(code=0, ran_s=0.1), "failed", "without a step, a metric or a checkpoint"),
        (Attempt(code=0, ran_s=9.0, saves=SAVES), "passed", "it finished with code 0 after"),
        (Attempt(code=0, left_behind=2), "failed", "left 2 processes running"),
        (Attempt(ran_s=60.0), "unknown", "it ran for 60 s and printed nothing"),
        (Attempt(ran_s=3.0, too_large=True), "failed", "wrote more than 5 GB within 3 s"),
    ],
)
def test_how_it_starts(first: Attempt, result: str, said: str) -> None:
    made = check("starts", facts(first, most_bytes=5_000_000_000))
    assert (made.result, said in made.evidence) == (Result(result), True), made


def test_a_module_that_is_nowhere_is_no_passed_import() -> None:
    last = "ModuleNotFoundError: No module named 'torchvision'"
    made = check("imports", facts(Attempt(code=1, last_lines=(last,))))
    assert (made.result, made.evidence) == (Result.FAILED, "torchvision is not installed here")
    own = MissingFile("module torchvision", "it lies outside", "--root ..")
    made = check("imports", facts(Attempt(code=1, last_lines=(last,)), missing=(own,)))
    assert "not installed" not in made.evidence, "it is here, and was not sent"


def test_a_converted_notebook_is_said_to_be_one() -> None:
    made = check("starts", facts(Attempt(code=1, last_lines=("NameError: name 'get_ipython'",))))
    assert "run it with ipython" in made.fix


def test_what_was_not_sent_is_named_with_its_reason_and_what_sends_it() -> None:
    absent = MissingFile("data/train.bin", "git ignores it", "--data data")
    of = facts(Attempt(code=1, last_lines=("FileNotFoundError",)), missing=(absent,))
    made = check("starts", of)
    assert "data/train.bin exists here but was not sent: git ignores it" in made.evidence
    assert (made.fix, made.details) == ("--data data", ("FileNotFoundError",))
    assert check("reads", of).result is Result.FAILED
    assert check("writes", of).fix == "", "it has to start first"


def test_of_many_names_those_that_may_be_the_metric_are_named_and_the_rest_counted() -> None:
    losses = [SeenKey(f"part{number}_loss", 5, 0.1) for number in range(12)]
    keys = (SeenKey("aux_loss", 5, 0.0, changes=False), *losses, SeenKey("eval_loss", 2, 1.0))
    evidence = check("metric", facts(replace(RAN, keys=keys))).evidence
    assert evidence.startswith("seen: part0_loss (5 values), part1_loss")
    assert evidence.endswith(
        "eval_loss (2 values), and 6 other names; best checkpoint by eval_loss"
    )
    assert "aux_loss" not in evidence


def test_one_that_wants_the_network_is_not_judged_by_it() -> None:
    ended = Attempt(code=1, ran_s=3.0, last_lines=("OSError: Network is unreachable",))
    made = check("starts", facts(ended))
    assert (made.result, made.fix) == (Result.UNKNOWN, "allow downloads with --online")
    assert check("starts", facts(ended, online=True)).result is Result.FAILED


def test_compiled_readers_leave_open_what_was_read() -> None:
    made = check("reads", facts(modules=("torch", "pyarrow")))
    assert made.result is Result.UNKNOWN
    assert "some may be missing: pyarrow reads without an event" in made.evidence
    assert check("reads", facts(pythons=())).evidence == "no Python process was seen"
    outside = check("reads", facts(outside_reads=("~/text.txt",)))
    assert outside.result is Result.FAILED
    assert "--data FOLDER" in outside.fix


def test_imports_without_requirements() -> None:
    made = check("imports", facts(unnamed=("einops", "tqdm")))
    assert made.evidence == "no requirements file names einops, tqdm, which are imported"
    assert made.fix == "add them to requirements.txt, and --pip requirements.txt"
    named = check("imports", facts(unnamed=("einops",), requirements="needs/requirements.txt"))
    assert named.evidence.startswith("needs/requirements.txt does not name einops")
    unknown = check("imports", facts(unnamed=None, requirements="requirements.txt"))
    assert unknown.result is Result.UNKNOWN
    assert "/usr/bin/python3 is not the python of your PATH" in unknown.evidence


def test_a_metric_that_was_asked_for() -> None:
    asked = Command(COMMAND.words, metric="val_loss")
    assert check("metric", facts(command=asked)).evidence == "val_loss: 2 values, the last 2.7"
    other = check("metric", facts(command=Command(COMMAND.words, metric="eval_loss")))
    assert other.result is Result.FAILED
    assert "seen: train_loss (20 values), val_loss (2 values)" in other.evidence


def test_how_it_stops_and_resumes() -> None:
    killed = Attempt(ran_s=60.0, lines=9, told=True, left_s=None, saves=SAVES)
    assert check("stops", facts(killed)).result is Result.FAILED
    plain = Attempt(ran_s=60.0, lines=9, told=True, left_s=0.1, saves=SAVES)
    assert (
        "without a save: a run keeps earlier checkpoints" in check("stops", facts(plain)).evidence
    )
    resume = Command(COMMAND.words, resume=("python", "train.py", "{checkpoint}"))
    goes_on = Attempt(ran_s=2.0, first_step=21)
    again = Attempt(ran_s=2.0, first_step=1)
    about: dict[str, Any] = {"resumed_from": "out/step-20.pt", "resumed_step": 20}
    assert check("resumes", facts(command=resume, resumed=goes_on, **about)).result is Result.PASSED
    begun = check("resumes", facts(command=resume, resumed=again, **about))
    assert (begun.result, "it started again at step 1" in begun.evidence) == (Result.FAILED, True)
    broken = Attempt(ran_s=0.2, code=2, last_lines=("KeyError",))
    assert check("resumes", facts(command=resume, resumed=broken, **about)).details == ("KeyError",)
    about["resumed_by"] = (*COMMAND.words, "--ckpt_path", "{checkpoint}")
    guess = check("resumes", facts(resumed=broken, **about))
    assert guess.result is Result.UNKNOWN
    assert "by --ckpt_path: it ended with code 2" in guess.evidence
    assert "--resume" not in run_line(facts(resumed=broken, **about), RequestedMachine())
    line = run_line(facts(resumed=goes_on, **about), RequestedMachine())
    assert "--resume 'python train.py --ckpt_path {checkpoint}' -- python train.py" in line


def test_the_line_follows_from_what_was_seen() -> None:
    line = run_line(facts(), RequestedMachine())
    assert line == (
        "trmcloud run local --rate 1 --budget 1 --checkpoints out --checkpoint-gb 0.01 "
        "--metric 'val_loss=([0-9.]+)' --grace 8 -- python train.py"
    )
    large = Attempt(saves=(SeenSave("ckpt/a b", 4_000_000_000, 1),), told=True, left_s=70.0)
    command = Command(
        ("python", "train.py", "--name", "it's"),
        env=("KEY",),
        stop_signal="USR1",
        resume=("python", "train.py", "{checkpoint}"),
    )
    rented = run_line(
        facts(large, command, data="data", requirements="requirements.txt"),
        RequestedMachine("1xH100", "", "20"),
    )
    words = shlex.split(rented)
    assert words[:5] == ["trmcloud", "run", "1xH100", "--budget", "20"]
    assert words[5:7] == ["--data", "data"]
    assert words[words.index("--checkpoint-gb") + 1] == "6"
    assert words[words.index("--resume") + 1] == "python train.py {checkpoint}"
    assert words[words.index("--pip") + 1] == "requirements.txt"
    assert words[words.index("--stop-signal") + 1] == "USR1"
    assert words[-4:] == list(command.words)
    context = load_command("run").make_context("run", words[2:])
    assert context.params["words"] == ("python", "train.py", "--name", "it's") or context.params[
        "words"
    ] == list(command.words)


@pytest.mark.parametrize(
    ("text", "name", "value", "pattern"),
    [
        ("step 1 val_loss=2.5", "val_loss", 2.5, r"val_loss=([0-9.]+)"),
        ("step 0: train loss 10.9, val loss 10.8", "val_loss", 10.8, r"val loss\s+([0-9.]+)"),
        ("{'eval_loss': '6.2', 'epoch': 1}", "eval_loss", 6.2, r"eval_loss[^\w.+-]+([0-9.]+)"),
        ("acc: -1e-3", "acc", -0.001, r"\bacc[^\w.+-]+([-+0-9.,a-zA-Z]+)"),
        ("tokens 3 loss=1,234.5", "loss", 1234.5, r"\bloss=([-+0-9.,a-zA-Z]+)"),
        ("run.py:824] loss: nan", "loss", None, r"\bloss[^\w.+-]+([-+0-9.,a-zA-Z]+)"),
    ],
)
def test_named_numbers_of_a_line(text: str, name: str, value: float | None, pattern: str) -> None:
    found = {each.name: each for each in numbers_in(text)}
    assert found[name].pattern == pattern
    assert found[name].value == value or value is None
    assert not {"step", "epoch", "run.py", "tokens"} & set(found)
    command = Command(("python",), metric=pattern)
    assert command.metric_name.strip("_").endswith(name.rpartition("_")[2])


def test_a_tracker_gets_its_key_or_stays_offline() -> None:
    without = replace(facts(), trackers=("wandb",))
    assert run_line(without, RequestedMachine()).endswith(
        f"-- env WANDB_MODE=offline {shlex.join(COMMAND.words)}"
    )
    assert differences(without) == (
        "wandb stays offline in the run: WANDB_API_KEY is not set; "
        "with it, use --env WANDB_API_KEY",
    )
    key = replace(without, has_keys=("wandb",))
    line = run_line(key, RequestedMachine())
    assert "--env WANDB_API_KEY" in line
    assert "WANDB_MODE" not in line
    assert differences(key) == (
        "wandb was offline here; the run takes WANDB_API_KEY from this shell",
    )
    assert differences(facts()) == ()


def test_the_hint_to_rent_names_the_packages_that_this_machine_has() -> None:
    about = facts(requirements="requirements.txt", unnamed=())
    line = run_line(about, RequestedMachine())
    made = Trial("ab" * 32, ("python",), 1.0, 60.0, judge(about), line)
    assert "--pip" not in line.split()
    assert packages_to_rent(made) == ", and add --pip requirements.txt"
    assert packages_to_rent(replace(made, line=f"{line} --pip requirements.txt")) == ""
    bare = facts(requirements="", unnamed=())
    assert packages_to_rent(replace(made, checks=judge(bare))) == ""


def test_a_warning_of_a_library_has_no_metric() -> None:
    said = "The hostname of the client socket cannot be retrieved. err=-3"
    assert numbers_in(f"[W1125 10:55:09.616563686 socket.cpp:207] [c10d] {said}") == ()
    assert [each.name for each in numbers_in(said)] == ["err"], "no name goes over a sentence's end"


def test_spellings_of_one_metric_are_listed_once() -> None:
    keys = (
        SeenKey("Loss", 3, 0.5, r"Loss\s+([0-9.]+)"),
        SeenKey("loss", 4, 0.5),
        SeenKey("val/acc", 2, 0.5),
        SeenKey("val_acc", 2, 0.5),
    )
    about = facts(Attempt(keys=keys))
    told = check("metric", about)
    assert (
        "loss (4 values, also written Loss), val/acc (2 values, also written val_acc)"
        in told.evidence
    )
    assert "other name" not in told.evidence
    typed = facts(Attempt(keys=keys[:1]), command=Command(("python",), metric="loss"))
    told = check("metric", typed)
    assert told.evidence.startswith("loss: 3 values")


def test_the_best_key_is_a_held_out_loss() -> None:
    keys = [SeenKey(name, 3) for name in ("grad_norm", "loss", "val_acc", "eval/loss")]
    assert best_key(keys).name == "eval/loss"  # type: ignore[union-attr]
    assert best_key(keys[:3]).name == "val_acc"  # type: ignore[union-attr]
    assert best_key(keys[:1]) is None
    average = SeenKey("Average_loss", 1, held_out=True)
    assert best_key([SeenKey("loss", 9), average, SeenKey("Accuracy", 1, held_out=True)]) == average
    assert is_of_held_out("Test set: Average loss: 0.0265, Accuracy: 9913/10000 (99%)")
    assert not is_of_held_out("device cuda, latest loss: 1.0")
    assert best_key([SeenKey("gradient_accumulation_steps", 1)]) is None
    accuracy = facts(Attempt(keys=(SeenKey("val_acc", 3, 0.5),)))
    assert "--metric val_acc --best max" in run_line(accuracy, RequestedMachine())


ARGUMENTS = (
    "engine/trainer: agnostic_nms=False, amp=True, batch=8, box=7.5, cache=False, cls=0.5, "
    "conf=None, epochs=60, iou=0.7, lr0=0.01, max_det=300, mixup=0.0, plots=False, val=True"
)
"""As Ultralytics 8.4.190 prints its arguments, of which some are left out."""


@pytest.mark.parametrize("text", [ARGUMENTS, "Namespace(batch_size=64, iou=0.5, lr=0.1)"])
def test_arguments_that_a_script_prints_are_no_metrics(text: str) -> None:
    assert numbers_in(text) == ()
    readings = Readings(Command(("python",), metric="iou"))
    assert readings.read(text.encode()) is None
    assert readings.keys == {}
    assert readings.read(b"epoch 1 iou=0.25") == Reading(None, {"iou": 0.25}, 1)


def test_of_ultralytics_numbers_its_own_measure_is_the_best_key() -> None:
    names = (
        "train/box_loss",
        "metrics/recall",
        "metrics/mAP50",
        "metrics/mAP50-95",
        "val/box_loss",
    )
    about = facts(Attempt(keys=tuple(SeenKey(name, 3, 0.5) for name in names)))
    assert "--metric metrics/mAP50-95 --best max" in run_line(about, RequestedMachine())


def test_losses_of_adversaries_compare_no_checkpoints() -> None:
    """As PyTorch's dcgan prints them: the lowest Loss_D is that of a generator that fails."""
    pair = [SeenKey("Loss_D", 8), SeenKey("Loss_G", 8)]
    assert best_key(pair) is None
    assert best_key([*pair, SeenKey("val_fid", 2)]).name == "val_fid"  # type: ignore[union-attr]
    assert best_key(pair[:1]) == pair[0], "without another one it is some loss"


def test_names_that_come_later_take_the_place_of_those_seen_once() -> None:
    readings = Readings(Command(("python",), metric="val_loss"))
    for number in range(80):
        readings.note_keys([f"setting_{number}"])
    readings.note_keys(["loss"] * 2)
    assert "loss" in readings.keys
    assert len(readings.keys) == 64


@pytest.mark.parametrize(
    ("sources", "place"),
    [
        (["out/a.pt", "out/b.pt"], "out"),
        (["model.pt"], "model.pt"),
        (["a.pt", "b.pt"], "*.pt"),
        (["runs/1/a.pt", "runs/2/b.pt"], "runs"),
        (["output/train/20261126-160501-resnet18-64/last.pth.tar"], "output/train"),
        (["outputs/2026-11-26/16-05-01/model.pt"], "outputs"),
        (["runs/Nov26_16-05-01_host/a.pt"], "runs"),
        (["runs/Ant-v4__ppo__1__1732636800/ppo.cleanrl_model"], "runs"),
        (["ckpts/3f2a9c1d/model_1.pt", "ckpts/3f2a9c1d/model_2.pt"], "ckpts"),
        (["2026-11-26_160501/model.pt"], "."),
        (["out/step_20261231/a.pt", "out/step_00001000/a.pt"], "out"),
        (["out/step_00001000/a.pt"], "out"),
        (["4.pkl"], "*.pkl"),
        (["checkpoint-10"], "checkpoint*"),
        (["checkpoint-10", "checkpoint-20"], "checkpoint*"),
        (["lightning_logs/version_0/checkpoints/a.ckpt"], "lightning_logs"),
        (["a.pt", "out/b.bin"], "."),
    ],
)
def test_the_place_of_its_checkpoints(sources: list[str], place: str) -> None:
    assert checkpoints_place([SeenSave(source, 1) for source in sources]) == place


def test_the_place_of_a_checkpoint_holds_its_other_files() -> None:
    several = SeenSave("model.pkl", 1, beside=("model.txt",))
    assert checkpoints_place([several]) == "."
    assert checkpoints_place([replace(several, beside=("model.bin.pkl",))]) == "*.pkl"
    inside = SeenSave("out/a.pt", 1, beside=("out/a.json",))
    assert checkpoints_place([inside]) == "out"


def test_names_in_requirements() -> None:
    texts = {
        "requirements.txt": "Torch>=2\n# einops\n-r other.txt\nmy_pkg[extra]==1 ; os_name\n"
        "git+https://x/y.git\n",
        "environment.yml": "dependencies:\n  - numpy=1.2\n  - pip:\n    - tqdm\n",
    }
    assert requirement_names(texts) >= {"torch", "my-pkg", "numpy", "tqdm"}
    assert "einops" not in requirement_names(texts)


def test_a_record_is_read_strictly_and_shown_beside_a_plan() -> None:
    made = judge(facts(Attempt(code=1, ran_s=1.0)))
    trial = Trial("a" * 64, COMMAND.words, 1e9, 60.0, made, "trmcloud run local")
    assert load(Trial, 1, dump(trial)) == trial
    assert trial.has_failed
    assert "✘ starts    failed: it ended with code 1 after 1.0 s" in check_lines(trial)
    lines = record_lines(trial, 1e9 + 120)
    assert lines[0].startswith("  · tried here 2 min 00 s ago; not known: writes, ")
    assert lines[1] == "  ! failed there: starts: it ended with code 1 after 1.0 s"
    for text in (dump(trial).replace('"failed"', '"perhaps"', 1), dump(trial)[:-1], "[]"):
        with pytest.raises(ContractError):
            load(Trial, 1, text)
    assert key_of("a" * 64, ("a", "b")) != key_of("a" * 64, ("a b",))


def test_why_a_file_is_not_sent(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("pass")
    (tmp_path / "prod.env").write_text("KEY=1")
    (tmp_path / "big.bin").write_bytes(b"0")
    (tmp_path / ".hidden").write_bytes(b"0")
    (tmp_path / "link").symlink_to("train.py")
    (tmp_path / ".trmcloudignore").write_text("*.bin\n")
    tree = look_at(tmp_path)
    assert why_left_out(tree, "train.py") == why_left_out(tree, "none") == ""
    assert why_left_out(tree, "prod.env") == "it looks like a key"
    assert why_left_out(tree, "big.bin") == ".trmcloudignore excludes it"
    assert why_left_out(tree, "link") == "it is a link"
    assert why_left_out(tree, ".hidden") == "it is hidden, or part of an environment"
    seen = Observed(Attempt(code=1, last_lines=("No such file: 'big.bin'", "'\x1b' \udcff'" * 99)))
    made = facts_of(
        COMMAND, seen, tree, tmp_path / "trial",
        for_s=1.0, most_bytes=1, data="", online=False, shell={},
    )  # fmt: skip
    assert [each.name for each in made.missing] == ["big.bin"]


def test_packages_are_asked_of_the_users_own_python_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version manager's shim starts another file than the one on PATH: it is asked which."""
    tree, there, shims = tmp_path / "tree", tmp_path / "versions", tmp_path / "shims"
    for folder in (tree, there, shims):
        folder.mkdir()
    (tree / "train.py").write_text("import pytest")
    (there / "python3").symlink_to(sys.executable)
    started = tmp_path / "started"
    (shims / "python3").write_text(
        f"#!/bin/sh\necho >> {started}\nPYTHONPATH={Path(pytest.__file__).parent.parent} "
        f'exec {there}/python3 "$@"\n'
    )
    (shims / "python3").chmod(0o755)
    monkeypatch.setenv("PATH", f"{shims}:/usr/bin:/bin")

    def unnamed(python: str) -> tuple[str, ...] | None:
        seen = Observed(RAN, pythons=(python,), modules=("pytest",), sources=("train.py",))
        return facts_of(
            Command(("python3", "train.py")), seen, look_at(tree), tmp_path / "trial",
            for_s=1.0, most_bytes=1, data="", online=False, shell={},
        ).unnamed  # fmt: skip

    (tmp_path / "trial").mkdir()
    assert unnamed(f"{there}/python3") == ("pytest",)
    assert started.exists()
    hostile = tree / "python3"
    hostile.write_text(f"#!/bin/sh\ntouch {tmp_path}/hostile\n")
    hostile.chmod(0o755)
    assert unnamed(str(hostile)) is None
    assert not (tmp_path / "hostile").exists()


def test_a_module_that_is_elsewhere_is_named_with_its_place(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    for name in ("mine/__init__.py", "src/made/__init__.py", "below/lib/other.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    below = tmp_path / "below"
    (below / "train.py").write_text("import mine")

    def said(root: Path, module: str) -> list[tuple[str, str]]:
        lines = (f"ModuleNotFoundError: No module named '{module}'",)
        made = facts_of(
            COMMAND, Observed(Attempt(code=1, last_lines=lines)), look_at(root), tmp_path / "t",
            for_s=1.0, most_bytes=1, data="", online=False, shell={},
        )  # fmt: skip
        return [(each.said, each.fix) for each in made.missing]

    assert [fix for _, fix in said(below, "mine.part")] == ["--root .."]
    assert [fix for _, fix in said(below, "made")] == ["--root .."]
    assert said(tmp_path, "made") == [
        (
            "module made is sent, but is not on Python's path",
            "put env PYTHONPATH=src before the command",
        )
    ]
    assert said(tmp_path, "nowhere") == []


def test_a_shadow_is_read_and_leaves_its_source_alone(tmp_path: Path) -> None:
    source = tmp_path / "hub"
    (source / "blobs").mkdir(parents=True)
    (source / "blobs" / "b").write_text("weights")
    (source / "snapshot").mkdir()
    (source / "snapshot" / "model").symlink_to("../blobs/b")
    target = tmp_path / "shown"
    assert shadow(source, target, 10) == 2
    assert (target / "snapshot" / "model").read_text() == "weights"
    (target / "snapshot" / "new").write_text("x")
    (target / "blobs" / "b").unlink()
    assert sorted(path.name for path in source.rglob("*")) == ["b", "blobs", "model", "snapshot"]
    assert shadow(source, tmp_path / "few", 1) == 1


@pytest.mark.parametrize(
    ("made", "flag"),
    [
        ("LightningCLI(Model, Data)", "--ckpt_path"),
        ("cli = LightningCLI(\n    Model,\n    trainer_defaults=dict(a=1),\n    run=False)", ""),
        ("parser = HfArgumentParser(Options)", "--resume_from_checkpoint"),
    ],
)
def test_a_framework_resumes_by_its_own_option(tmp_path: Path, made: str, flag: str) -> None:
    (tmp_path / "train.py").write_text(made + "\n")
    assert resume_flag(look_at(tmp_path), ("python", "train.py")) == flag
