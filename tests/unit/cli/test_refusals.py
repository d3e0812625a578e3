"""What commands refuse: one line, a next step, an exit code of its own, and nothing has changed."""

from __future__ import annotations

import importlib.util
import json
import time

import pytest

from tests.documents import document_in
from tests.e2e.user import LAUNCH, SMALL
from tests.typist import InProcess, typist

__all__ = ["typist"]

RATE = ("--rate", "3.60", "--checkpoint-gb", "0.001", "-y")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x = " + "[" * 20_000, "the recipe is nested too deeply"),
        ("x = " + "9" * 5000, "the recipe is not TOML"),
        ("x = [", "the recipe is not TOML"),
        ("\x00", "the recipe is not TOML"),
    ],
    ids=["brackets", "digits", "open", "nul"],
)
def test_recipes_that_are_none(typist: InProcess, text: str, says: str) -> None:
    (typist.folder / "mine.toml").write_text(text)
    assert says in typist.refused("plan", "--recipe", "mine.toml", code=2)


@pytest.mark.parametrize(
    ("arguments", "code", "says", "next_step"),
    [
        (("launch", "9xFOO"), 2, "unknown hardware '9xFOO'", ""),
        (("launch", "A100"), 2, "gives no number of GPUs", "1xA100"),
        (("launch", "8xA100", "--budget", "500", "-y"), 15, "no RunPod key", "RUNPOD_API_KEY"),
        (("launch", "8xA100", "--rate", "3"), 2, "--rate is the price of this machine", ""),
        (("launch", "local", "--recipe", "./no.toml"), 3, "no recipe file no.toml", ""),
        (("plan", "--recipe", "/dev/zero"), 2, "the recipe file is too large", ""),
        (("launch",), 2, "missing argument 'HARDWARE'", "trmcloud launch --help"),
        (("launch", "p-abcd"), 3, "no plan p-abcd", "trmcloud plan"),
        ((*LAUNCH, "--phase", "train"), 2, "has no phase 'train'", "phases: fast, extreme"),
        ((*LAUNCH, "--steps", "5", "--hours", "1"), 2, "exclude one another", ""),
        ((*LAUNCH, "--steps", "0"), 2, "--steps must be above zero", ""),
        ((*LAUNCH, "--hours", "nan"), 2, "--hours must be above zero", ""),
        ((*LAUNCH, "--tokens=-3"), 2, "--tokens must be above zero", ""),
        (
            (*LAUNCH, "--budget", "0.001"),
            4,
            "$0.0010 is too little for trm-tiny on local",
            "",
        ),
        ((*LAUNCH, "--budget", "1", "--rate", "0"), 2, "--rate: '0' is not above zero", ""),
        ((*LAUNCH, "--processes", "100000"), 2, "cannot run 100000 processes", "--processes"),
        ((*LAUNCH, "--processes=-1"), 2, "--processes must be above zero", ""),
        ((*LAUNCH, "--budget", "1", "--from", "nothing"), 3, "no such run", "trmcloud status"),
        (("launch", "local", *SMALL, "--budget", "1"), 2, "this is not a terminal", "pass -y"),
        (("plan", "--recipe", "hdp", "--phase", "extreme"), 2, "no phase 'extreme'", "train"),
        (("budget", "set", "week", "5"), 2, "there is no budget level 'week'", "month"),
        (("budget", "set", "month", "5", "--for", "2026-13"), 2, "is not a month", ""),
        (
            ("prune", "r-aaaaaa", "--keep-best", "0"),
            2,
            "--keep-best must be at least 1: the best checkpoint is never deleted",
            "",
        ),
        (
            ("sample", "--max-tokens", "0"),
            2,
            "--max-tokens must be 1–4096, --temperature 0–10, --top-k at least 1",
            "",
        ),
        (("stop", "a", "b"), 2, "unexpected extra argument", "trmcloud stop --help"),
    ],
)
def test_words_that_mean_nothing(
    typist: InProcess, arguments: tuple[str, ...], code: int, says: str, next_step: str
) -> None:
    what, _, advice = typist.refused(*arguments, code=code).partition("\n")
    assert says in what
    assert next_step in advice


@pytest.mark.parametrize(
    ("setting", "code", "says", "next_step"),
    [
        ("dpeth=3", 2, "there is no setting 'dpeth'", "did you mean 'depth'?"),
        ("recipe=x", 2, "there is no setting 'recipe'", ""),
        ("depth", 2, "--set takes KEY=VALUE", "--set depth=8"),
        ("depth=three", 2, "depth takes a whole number", ""),
        ("depth=1.5", 2, "depth takes a whole number", ""),
        ("depth=0", 2, "depth must be above zero", ""),
        ("matrix_lr=nan", 2, "matrix_lr takes a number", ""),
        ("compile=maybe", 2, "compile takes true or false", ""),
        ("dtype=float12", 2, "dtype must be one of", "float"),
        ("width=33", 2, "width 33 is not a multiple of head_dim 32", "--set width=32"),
        ("head_dim=64", 2, "width 32 is not a multiple of head_dim 64", "--set head_dim=32"),
        ("head_dim=1", 2, "head_dim 1 is odd", ""),
        ("hidden=64", 2, "trm has no setting 'hidden'", ""),
        ("schedule=linear", 2, "schedule must be one of", ""),
        ("cooldown_fraction=2", 2, "cooldown_fraction must be from 0 to 1", ""),
        ("batch=100000", 5, "does not fit on local", "trmcloud plan"),
        ("depth=100000000000", 5, "does not fit on local", "trmcloud plan"),
    ],
)
def test_settings_that_cannot_be(
    typist: InProcess, setting: str, code: int, says: str, next_step: str
) -> None:
    what, _, advice = typist.refused(
        *LAUNCH, "--budget", "0.1", "--set", setting, code=code
    ).partition("\n")
    assert says in what
    assert next_step in advice


def test_what_a_trainer_would_refuse_is_not_launched(typist: InProcess) -> None:
    # Before anything is rented or prepared.
    for recipe, setting, told in (
        ("bd3lm", "block=20", "a sequence of 512 is not a multiple of blocks of 20"),
        ("hdp", "plan_tokens=96", "128, 96 and 256 tokens do not add up to a sequence of 512"),
        ("hdp", "rows=padded", "hdp learns plans and executions, which rows=padded does not have"),
        ("hdp", "block=16", "hdp has no setting 'block'"),
        (
            "bd3lm",
            "rows=segments",
            "does not use question, plan and execution: rows=segments does not work with it",
        ),
    ):
        for hardware in ("local", "8xH200"):
            err = typist.refused(
                "launch", hardware, "--recipe", recipe, "--set", setting, "-y", code=2
            )
            assert told in err
            assert err.count("\n") <= 2
    # A family that is trained, in a way that it is not: before a key or a budget is asked for.
    shared_out = ("--recipe", "trm-tiny", "--set", "sharding=fsdp", "-y")
    err = typist.refused("launch", "8xH100", *shared_out, code=12)
    assert err.startswith(
        "error: trm-tiny can be planned, not launched: sharding=fsdp does not work with"
    )
    assert typist.ledger().runs == {}


def test_commands_before_any_run(typist: InProcess) -> None:
    assert typist.run("status").startswith("no runs yet")
    assert typist.json("status", "--json")["runs"] == []
    assert typist.run("report") == "no runs yet\n"
    assert typist.json("report", "--json")["runs"] == []
    assert len(typist.run("report", "--csv").splitlines()) == 1
    assert "no cap is set · trmcloud budget set month 500" in typist.run("budget", "history")
    for command in ("logs", "fetch-best", "sample", "eval", "stop", "resume", "prune"):
        assert "there are no runs yet" in typist.refused(command, code=3)
        assert "no run 'r-nope'" in typist.refused(command, "r-nope", code=3)
    assert "no run 'r-nope'" in typist.refused("status", "r-nope", code=3)
    assert "no run 'r-nope'" in typist.refused("report", "--to", "tensorboard", "r-nope", code=3)


def test_saved_plans(typist: InProcess) -> None:
    made = typist.json("launch", "local", *SMALL, "--phase", "fast", "--budget", "1",
                     "--dry-run", "--json")  # fmt: skip
    path = typist.home / "plans" / f"{made['id']}.json"
    err = typist.refused("launch", made["id"], "--budget", "2", "-y", code=2)
    assert f"--budget cannot change plan {made['id']}" in err
    expired = json.loads(path.read_text()) | {"expires_at": time.time() - 7200}
    path.write_text(json.dumps(expired))
    assert "expired 2.0 h ago" in typist.refused("launch", made["id"], "-y", code=2)
    for text in ("{", "[]", '{"version": 0}', "\x00\xff"):
        path.write_text(text)
        assert "cannot be read: it is damaged" in typist.refused("launch", made["id"], "-y", code=2)


def test_a_home_that_is_a_file(typist: InProcess) -> None:
    typist.home.write_text("not a folder")
    for arguments in (("status",), (*LAUNCH, "--budget", "1")):
        assert "the ledger cannot be used" in typist.refused(*arguments, code=7)
    assert "the plan cannot be saved" in typist.refused("plan", code=8)
    assert "✘ ledger" in typist.run("doctor", code=1)
    assert typist.home.read_text() == "not a folder"


def test_a_home_that_cannot_be_made(typist: InProcess) -> None:
    typist.environment["TRMCLOUD_HOME"] = "/proc/trmcloud"
    for arguments in (("status",), (*LAUNCH, "--budget", "1")):
        assert "the ledger cannot be used" in typist.refused(*arguments, code=7)
    assert "the plan cannot be saved" in typist.refused("plan", code=8)


# -- run ------------------------------------------------------------------------------------------


@pytest.fixture
def in_project(typist: InProcess) -> InProcess:
    typist.cwd = typist.folder / "project"
    typist.cwd.mkdir()
    (typist.cwd / "train.py").write_text("print('never')")
    return typist


@pytest.mark.parametrize(
    ("options", "words", "said"),
    [
        (("--metric", "loss=([0-9"), ("python3", "train.py"), "--metric is not a valid pattern"),
        (("--metric", "(a)=(b)"), ("python3", "train.py"), "2 groups"),
        (("--checkpoints", "../out"), ("python3", "train.py"), "inside the working tree"),
        (("--stop-signal", "KILL"), ("python3", "train.py"), "--stop-signal must be one of"),
        (("--env", "A=b"), ("python3", "train.py"), "not its value"),
        (("--env", "NOT_THERE"), ("python3", "train.py"), "no such variable"),
        (("--resume", " "), ("python3", "train.py"), "--resume does not contain a command"),
        (("--best", "most"), ("python3", "train.py"), "min or max"),
        (("--grace", "-1"), ("python3", "train.py"), "--grace takes seconds"),
        (("--image", "no image"), ("python3", "train.py"), "--image takes the name of"),
        (("--image", "a/b:1"), ("python3", "train.py"), "--image works only at runpod"),
        (("--probe", "-1"), ("python3", "train.py"), "--probe must be from 1"),
        (("--data", "nowhere"), ("python3", "train.py"), "--data takes a folder"),
        (
            ("--checkpoint-gb", "100", "--bucket", "s3://bucket/runs"),
            ("python3", "train.py"),
            "--checkpoint-gb 100 with --bucket: a pod uploads files of up to 69 GB",
        ),
        ((), ("no-such-program",), "command not found on this machine"),
    ],
)
def test_a_command_that_cannot_be_is_refused_before_anything_is_started(
    in_project: InProcess, options: tuple[str, ...], words: tuple[str, ...], said: str
) -> None:
    err = in_project.refused(
        "run", "local", "--budget", "0.10", *RATE, *options, "--", *words, code=2
    )
    assert said in err


def test_a_dry_run_shows_what_would_be_sent(in_project: InProcess) -> None:
    dry = ("run", "local", *RATE[:-1], "--budget", "0.10", "--dry-run")
    out = in_project.run(*dry, "-v", "--", "python3", "train.py")
    assert "train.py" in out
    assert (
        "not known: the length, memory and quality of the command; --hours ends it earlier" in out
    )
    plan = in_project.json(*dry, "--json", "--", "python3", "train.py")
    assert plan["command"] == ["python3", "train.py"]
    refused = in_project.fails("launch", plan["id"], "-y", code=2)
    assert "is for a command" in refused


def test_a_root_that_is_not_around_the_folder_is_refused(in_project: InProcess) -> None:
    assert in_project.cwd is not None
    (in_project.cwd / "other").mkdir()
    words = ("run", "local", *RATE, "--budget", "1", "--root", "other", "--", "python3", "train.py")
    said = in_project.fails(*words, code=2)
    assert "--root takes a folder that contains this one, not" in said


def test_a_list_that_is_there_and_not_named_is_told(in_project: InProcess) -> None:
    assert in_project.cwd is not None
    (in_project.cwd / "requirements.txt").write_text("salute_of_ours\n")
    out = in_project.run(
        "run", "local", *RATE, "--budget", "0.20", "--dry-run", "--", "python3", "train.py"
    )
    assert "not installed: requirements.txt; --pip requirements.txt installs it" in out


def test_a_run_without_a_price_says_what_its_limit_is(in_project: InProcess) -> None:
    words = ("-y", "--dry-run", "--budget", "1", "--", "python3", "train.py")
    out = in_project.run("run", "local", *words)
    assert (
        "without --rate no cost is counted, and --budget has no effect: asked to stop 24 h" in out
    )
    assert "stopped after 23 h 5" in out
    said = in_project.fails("run", "local", "--rate", "1", *words[:2], *words[4:], code=2)
    assert "the run needs a limit, because the machine costs money every hour" in said


# -- sweep ----------------------------------------------------------------------------------------

SWEEP = ("sweep", "local", *SMALL, "--phase", "fast", "--rate", "36", "--processes", "1", "-y")
SPACE = "lr=log:1e-4,1"


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (("--recipe", "trm-tiny", "lr=log:1,0.1", "--phase", "fast"), "below its start"),
        (("--recipe", "trm-tiny", "lr=wide:1,2", "--phase", "fast"), "takes a number above zero"),
        (("--recipe", "trm-tiny", "nothing=1|2", "--phase", "fast"), "has no setting 'nothing'"),
        (("--recipe", "trm-tiny", "steps=1|2", "--phase", "fast"), "is the same in all trials"),
        (("--recipe", "trm-tiny", "lr=0.1|0.2"), "a sweep trains one phase"),
        (("--recipe", "trm-tiny", "--phase", "fast"), "the space has no parameter"),
        (("lr=0.1|0.2",), "name what is trained"),
        (("lr=0.1|0.2", "--", "python3", "train.py"), "is not in the command"),
        (("lr=0.1|0.2", "--", "python3", "{lr}", "{x}"), "which is not in the space"),
        (("lr=0.1|0.2", "--", "python3", "{lr}"), "needs the metric"),
        (("--recipe", "shakespeare", "--metric", "loss", "lr=0.1|0.2"), "compared by val_bpb"),
        (("--recipe", "shakespeare", "--grace", "3", "lr=0.1|0.2"), "is about a command"),
        (("--recipe", "shakespeare", "--sampler", "grid", "lr=0.1|0.2"), "--sampler must be"),
        (("--recipe", "shakespeare", "--space", "none.toml"), "cannot be read"),
        (("--recipe", "shakespeare", "--on", "slurm", "lr=0.1|0.2"), "--on must be ray"),
        (("--recipe", "shakespeare", "--default", "width=3", "lr=0.1|0.2"), "not in the space"),
    ],
)
def test_what_cannot_be_swept_is_one_line(
    typist: InProcess, typed: tuple[str, ...], said: str
) -> None:
    options = [] if "--data" in typed else ["--data", "python-stdlib"]
    if "--" in typed:
        options = []
    words = ("sweep", "local", "--rate", "3.60", "--budget", "1", *options, *typed)
    text = typist.fails(*words, code=2)
    first = text.splitlines()[0]
    assert first.startswith("error: ")
    assert said in first


@pytest.mark.parametrize(
    "form", [("sweep", "--provider", "aws", "--dry-run"), ("export", "--as", "sbatch")]
)
def test_a_sweep_on_several_machines_is_refused_with_what_to_do(
    typist: InProcess, form: tuple[str, ...]
) -> None:
    command, *options = form
    words = ("--recipe", "shakespeare", "--budget", "50", "lr=log:1e-3,1e-1", *options)
    text = typist.fails(command, "2x8xH100", *words, code=2)
    said = "error: a sweep runs on one machine, and 2x8xH100 is 2 machines\n"
    assert text.startswith(said)
    assert "trmcloud sweep 8xH100 --machines 2, a run on each" in text


def test_slots_divide_the_gpus_of_the_machine(typist: InProcess) -> None:
    words = ("--recipe", "shakespeare", "--phase", "train", "--budget", "50", "lr=log:1e-3,1e-1")
    aws = ("sweep", "8xH100", "--provider", "aws", *words, "--dry-run")
    assert "8, $" in typist.run(*aws)
    text = typist.fails(*aws, "--slots", "5", code=2)
    assert text.startswith("error: --slots 5: 8 GPUs cannot be divided so")
    assert "4, $" in typist.run(*aws, "--slots", "4")


def test_trials_on_ray_need_a_cluster_of_ones_own(typist: InProcess) -> None:
    words = ("--recipe", "shakespeare", "--budget", "20", "--on", "ray", "lr=0.1|0.2")
    text = typist.fails("sweep", "1xH100", *words, code=2)
    assert "uses a cluster that you have, and 1xH100 is rented" in text
    typist.environment["RAY_ADDRESS"] = "ray://head:10001"
    text = typist.fails("sweep", "local", "--rate", "3.60", *words, code=2)
    assert "is for Ray's client" in text
    if importlib.util.find_spec("ray") is not None:
        typist.environment |= {"RAY_ADDRESS": "head:6379", "RAY_AUTH_TOKEN": "secret-word"}
        text = typist.fails("sweep", "local", "--rate", "3.60", *words, code=2)
        assert "RAY_AUTH_TOKEN is a secret" in text
        assert "secret-word" not in text
    else:
        typist.environment["RAY_ADDRESS"] = "head:6379"
        text = typist.fails("sweep", "local", "--rate", "3.60", *words, code=6)
        assert "--on ray needs the 'ray' extra" in text


def test_a_sweep_needs_a_limit_and_a_budget_for_one_rung(typist: InProcess) -> None:
    text = typist.fails("sweep", "local", *SMALL, "--phase", "fast", SPACE, code=2)
    assert "a sweep needs a limit" in text
    text = typist.fails(*SWEEP, "--budget", "0.25", SPACE, code=2)
    assert "less than one rung" in text or "is too little for" in text


def test_a_sweeps_dry_run_says_what_the_dollars_buy(typist: InProcess) -> None:
    out = typist.run(*SWEEP, "--budget", "2", "--dry-run", SPACE)
    assert "rungs" in out
    assert "trials" in out
    made = typist.json(*SWEEP, "--budget", "2", "--dry-run", "--json", SPACE)
    assert made["id"].startswith("p-")
    assert list((typist.home / "plans").iterdir())


# -- names, tags, keys ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("--name", "r-123456"),
            "--name takes at most 63 letters, digits and . _ -, and must not look like an id: not",
        ),
        (
            ("--name", "a b"),
            "--name takes at most 63 letters, digits and . _ -, and must not look like an id: not",
        ),
        (
            ("--name", ""),
            "--name takes at most 63 letters, digits and . _ -, and must not look like an id: not",
        ),
        (("--tag", "alone"), "--tag takes KEY=VALUE"),
        (("--tag", "a=1", "--tag", "a=2"), "--tag a is given twice"),
        (("--idempotency-key", ""), "--idempotency-key takes"),
        (("--idempotency-key", "k" * 201), "--idempotency-key takes"),
    ],
)
def test_labels_that_are_none_are_refused(
    typist: InProcess, words: tuple[str, ...], said: str
) -> None:
    code, out, _ = typist.ended("launch", "local", *SMALL, "--budget", "1", "-y", *words, "--json")
    error = document_in(out)
    assert (code, error["schema"], error["exit_code"]) == (2, "error/1", 2)
    assert error["message"].startswith(said)
    assert typist.ledger().runs == {}


def test_no_price_without_a_rented_machine(typist: InProcess) -> None:
    out = typist.fails(
        "launch", "local", "--rate", "1", "--budget", "1", "--wait-for", "1h", code=2
    )
    assert "--wait-for and --max-price work only with rented hardware" in out
    out = typist.fails(
        "launch",
        "1xRTX4090",
        "--recipe",
        "trm-tiny",
        "--phase",
        "fast",
        "--wait-for",
        "9d",
        "-y",
        code=2,
    )
    assert "is not a duration of up to a week" in out


# -- export ---------------------------------------------------------------------------------------


def test_an_export_that_does_not_fit_is_refused(typist: InProcess) -> None:
    typist.refused("export", "8xA100", "--budget", "0.10", "--data", "/x", code=4)
    typist.refused("export", "local", "--as", "sky", "--rate", "1", "--data", "/x", code=2)
    typist.refused("export", "all", code=2)
    every = typist.json("export", "all", "--as", "sky", "-o", str(typist.folder / "sky"), "--json")
    assert every["schema"] == "export/1"
    assert len(every["files"]) == len(list((typist.folder / "sky").iterdir())) > 5
    assert "RUN_DIR" in typist.refused("fetch-best", str(typist.folder), code=3)
    assert "climbmix" in typist.run("export", "8xA100")  # a recipe has data of its own


def test_an_interpreter_whose_name_ends_as_on_windows_is_refused(in_project: InProcess) -> None:
    script = in_project.here / "train.sh"
    script.write_bytes(b"#!/bin/sh\r\necho 1\r\n")
    script.chmod(0o755)
    told = in_project.fails(
        *("run", "local", "--rate", "1", "--budget", "1", "-y", "--", "./train.sh"), code=2
    )
    assert "its lines end as on Windows" in told
    assert "try: sed -i 's/\\r$//' ./train.sh" in told


# -- try ------------------------------------------------------------------------------------------


def test_what_cannot_be_tried_is_refused(in_project: InProcess) -> None:
    assert "nosuch: command not found on this machine" in in_project.fails(
        "try", "--", "nosuch", "train.py", code=2
    )
    assert "--for must be from 1 to 3600 seconds" in in_project.fails(
        "try", "--for", "0", "--", "python3", "train.py", code=2
    )
    assert "missing argument" in in_project.fails("try", code=2)
