"""What bad input gets: one line, a next step, an exit code of its own, and nothing lost."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.user import LAUNCH, ROOT, SMALL, User

# -- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("amount", "code", "says"),
    [
        ("-5", 2, "'-5' is not above zero"),
        ("0", 2, "'0' is not above zero"),
        ("nan", 2, "not a finite amount"),
        ("inf", 2, "not a finite amount"),
        ("1e999999999", 2, "is too large an amount"),
        ("ten", 2, "'ten' is not an amount of dollars"),
        ("", 2, "'' is not an amount of dollars"),
        ("0.0000001", 2, "finer than a millionth"),
        ("0.001", 4, "$0.0010 does not pay for one useful step on local"),
    ],
)
def test_budgets_that_are_none(user: User, amount: str, code: int, says: str) -> None:
    assert says in user.refused(*LAUNCH, f"--budget={amount}", code=code)


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
def test_recipes_that_are_none(user: User, text: str, says: str) -> None:
    (user.folder / "mine.toml").write_text(text)
    assert says in user.refused("plan", "--recipe", "mine.toml", code=2)


@pytest.mark.parametrize(
    ("arguments", "code", "says", "next_step"),
    [
        (("launch", "9xFOO"), 2, "unknown hardware '9xFOO'", ""),
        (("launch", "8xH10"), 2, "unknown hardware '8xH10'", "did you mean 8xH100?"),
        (("launch", "locl"), 2, "unknown hardware 'locl'", "did you mean local?"),
        (("launch", "A100"), 2, "gives no number of GPUs", "1xA100"),
        (("launch", "8xA100", "--budget", "500", "-y"), 15, "no RunPod key", "RUNPOD_API_KEY"),
        (("launch", "8xA100", "--rate", "3"), 2, "--rate is the price of this machine", ""),
        (("launch", "local", "--recipe", "trm-tny"), 3, "no recipe", "did you mean trm-tiny?"),
        (("launch", "local", "--recipe", "./no.toml"), 3, "no recipe file no.toml", ""),
        (("launch", "local", "--recipe", "/dev/zero"), 2, "the recipe file is too large", ""),
        (("plan", "--recipe", "/dev/zero"), 2, "the recipe file is too large", ""),
        (("plan", "--budget", "1e400"), 2, "is too large an amount", ""),
        (("launch", "local", "--rate", "1e400"), 2, "is too large an amount", ""),
        (("launch",), 2, "missing argument 'HARDWARE'", "trmcloud launch --help"),
        (("launch", "p-abcd"), 3, "no plan p-abcd", "trmcloud plan"),
        ((*LAUNCH, "--phase", "sideways"), 2, "--phase must be one of", "trmcloud launch --help"),
        ((*LAUNCH, "--phase", "train"), 2, "has no phase 'train'", "phases: fast, extreme"),
        ((*LAUNCH, "--steps", "5", "--hours", "1"), 2, "exclude one another", ""),
        ((*LAUNCH, "--steps", "0"), 2, "--steps must be above zero", ""),
        ((*LAUNCH, "--steps", "many"), 2, "'--steps'", ""),
        ((*LAUNCH, "--hours", "nan"), 2, "--hours must be above zero", ""),
        ((*LAUNCH, "--tokens=-3"), 2, "--tokens must be above zero", ""),
        ((*LAUNCH, "--budget", "1", "--rate", "0"), 2, "--rate: '0' is not above zero", ""),
        ((*LAUNCH, "--processes", "100000"), 2, "cannot run 100000 processes", "--processes"),
        ((*LAUNCH, "--processes=-1"), 2, "--processes must be above zero", ""),
        ((*LAUNCH, "--budget", "1", "--from", "nothing"), 3, "no such run", "trmcloud status"),
        (("launch", "local", *SMALL, "--budget", "1"), 2, "this is not a terminal", "pass -y"),
        (("plan", "--recipe", "hdp", "--phase", "extreme"), 2, "no phase 'extreme'", "train"),
        (("plan", "--objective", "worst"), 2, "--objective must be one of", "value"),
        (("plan", "--budget", "ten"), 2, "'ten' is not an amount", ""),
        (("budget", "set", "month", "ten"), 2, "'ten' is not an amount", ""),
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
        (("status", "--nope"), 2, "no such option: --nope", "trmcloud status --help"),
        (("stop", "a", "b"), 2, "unexpected extra argument", "trmcloud stop --help"),
        (("statsu",), 2, "did you mean 'status'?", "trmcloud --help"),
    ],
)
def test_words_that_mean_nothing(
    user: User, arguments: tuple[str, ...], code: int, says: str, next_step: str
) -> None:
    what, _, advice = user.refused(*arguments, code=code).partition("\n")
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
    user: User, setting: str, code: int, says: str, next_step: str
) -> None:
    what, _, advice = user.refused(
        *LAUNCH, "--budget", "0.1", "--set", setting, code=code
    ).partition("\n")
    assert says in what
    assert next_step in advice


def test_what_a_trainer_would_refuse_is_not_launched(user: User) -> None:
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
            err = user.refused(
                "launch", hardware, "--recipe", recipe, "--set", setting, "-y", code=2
            )
            assert told in err
            assert err.count("\n") <= 2
    # A family that is trained, in a way that it is not: before a key or a budget is asked for.
    shared_out = ("--recipe", "trm-tiny", "--set", "sharding=fsdp", "-y")
    err = user.refused("launch", "8xH100", *shared_out, code=12)
    assert err.startswith(
        "error: trm-tiny can be planned, not launched: sharding=fsdp does not work with"
    )
    assert user.ledger().runs == {}


def test_commands_before_any_run(user: User) -> None:
    assert user.run("status").startswith("no runs yet")
    assert user.json("status", "--json")["runs"] == []
    assert user.run("report") == "no runs yet\n"
    assert user.json("report", "--json")["runs"] == []
    assert len(user.run("report", "--csv").splitlines()) == 1
    assert "no cap is set · trmcloud budget set month 500" in user.run("budget", "history")
    for command in ("logs", "fetch-best", "sample", "eval", "stop", "resume", "prune"):
        assert "there are no runs yet" in user.refused(command, code=3)
        assert "no run 'r-nope'" in user.refused(command, "r-nope", code=3)
    assert "no run 'r-nope'" in user.refused("status", "r-nope", code=3)
    assert "no run 'r-nope'" in user.refused("report", "--to", "tensorboard", "r-nope", code=3)


def test_saved_plans(user: User) -> None:
    made = user.json("launch", "local", *SMALL, "--phase", "fast", "--budget", "1",
                     "--dry-run", "--json")  # fmt: skip
    path = user.home / "plans" / f"{made['id']}.json"
    err = user.refused("launch", made["id"], "--budget", "2", "-y", code=2)
    assert f"--budget cannot change plan {made['id']}" in err
    expired = json.loads(path.read_text()) | {"expires_at": time.time() - 7200}
    path.write_text(json.dumps(expired))
    assert "expired 2.0 h ago" in user.refused("launch", made["id"], "-y", code=2)
    for text in ("{", "[]", '{"version": 0}', "\x00\xff"):
        path.write_text(text)
        assert "cannot be read: it is damaged" in user.refused("launch", made["id"], "-y", code=2)


# -- data, with the real trainer's own preparation ------------------------------------------------


@pytest.fixture
def reader(user: User) -> User:
    """A user whose text is read by the real trainer."""
    user.trainer = None
    return user


def _no_file(folder: Path) -> str:
    return "gone.txt"


def _tiny(folder: Path) -> str:
    (folder / "tiny.txt").write_text("hi there\n")
    return "tiny.txt"


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (_no_file, "there is no such file or folder"),
        (_tiny, "smaller than one batch: 3 tokens to train on, 260 needed"),
    ],
)
def test_data_that_cannot_be_trained_on(
    reader: User, make: Callable[[Path], str], says: str
) -> None:
    name = make(reader.folder)
    small = [part.replace("python-stdlib", name) for part in SMALL]
    small = [part.replace("vocab_size=256", "vocab_size=512") for part in small]
    err = reader.refused(
        "launch", "local", *small, "--phase", "fast", "--budget", "1", "-y", code=9
    )
    assert says in err
    assert name in err
    assert list(reader.home.glob("runs/*")) == []


def test_two_commands_that_prepare_the_same_text(reader: User) -> None:
    (reader.folder / "text.txt").write_text("def f(x):\n    return x\n" * 3000)
    small = [part.replace("python-stdlib", "text.txt") for part in SMALL]
    small = [part.replace("vocab_size=256", "vocab_size=512") for part in small]
    racing = [reader.start("launch", "local", *small, "--budget", "1") for _ in range(3)]
    for process in racing:
        _, err = process.communicate(timeout=120)
        assert process.returncode == 2
        assert "this is not a terminal" in err
    folders = [path for path in (reader.home / "data").iterdir() if path.is_dir()]
    assert len(folders) == 1
    assert (folders[0] / "meta.json").exists()


# -- this machine ---------------------------------------------------------------------------------


def test_torch_missing(user: User) -> None:
    """Only where it is used: planning and looking need none of it."""
    hide = user.folder / "hide"
    hide.mkdir()
    (hide / "sitecustomize.py").write_text(
        "import importlib.machinery as m\n"
        "find = m.PathFinder.find_spec\n"
        "def without_torch(name, *rest, **more):\n"
        "    return None if name.partition('.')[0] == 'torch' else find(name, *rest, **more)\n"
        "m.PathFinder.find_spec = without_torch\n"
    )
    user.environment["PYTHONPATH"] = f"{hide}:{ROOT}"
    for arguments in ((*LAUNCH, "--budget", "1"), ("eval",)):
        err = user.refused(*arguments, code=6)
        assert "install" in err
        assert "[train]'" in err
    text = user.folder / "text.txt"
    text.write_text("to be or not to be\n" * 99)
    rented = ("launch", "8xA100", "--data", str(text), "--budget", "50", "-y")
    assert "RUNPOD_API_KEY" in user.refused(*rented, code=15)
    assert user.run("status").startswith("no runs yet")
    assert "Recommended" in user.run("plan", "--budget", "1000")


def test_too_little_disk(user: User) -> None:
    disk = user.folder / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16m", "none", str(disk)], capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("mounting a small disk needs root")
    try:
        user.environment["TRMCLOUD_HOME"] = str(disk)
        err = user.fails(*LAUNCH, "--budget", "1", code=5)
        assert "checkpoints need 0.07 GB, but the disk has 0.02 GB free" in err
        assert not (disk / "runs").exists()
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_home_that_is_a_file(user: User) -> None:
    user.home.write_text("not a folder")
    for arguments in (("status",), (*LAUNCH, "--budget", "1")):
        assert "the ledger cannot be used" in user.refused(*arguments, code=7)
    assert "the plan cannot be saved" in user.refused("plan", code=8)
    assert "✘ ledger" in user.run("doctor", code=1)
    assert user.home.read_text() == "not a folder"


def test_a_home_that_cannot_be_made(user: User) -> None:
    user.environment["TRMCLOUD_HOME"] = "/proc/trmcloud"
    for arguments in (("status",), (*LAUNCH, "--budget", "1")):
        assert "the ledger cannot be used" in user.refused(*arguments, code=7)
    assert "the plan cannot be saved" in user.refused("plan", code=8)
