"""What bad input gets: one line, a next step, an exit code of its own, and nothing lost."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.user import ROOT, SMALL, User, until
from trmcloud.core.money import ZERO
from trmcloud.core.run_state import RunState

LAUNCH = ("launch", "local", *SMALL, "--phase", "fast", "-y")
NewUser = Callable[[str], User]


# -- options -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("amount", "code", "says"),
    [
        ("-5", 2, "'-5' is not above zero"),
        ("0", 2, "'0' is not above zero"),
        ("nan", 2, "not a finite amount"),
        ("inf", 2, "not a finite amount"),
        ("1e999999999", 2, "more money than there is"),
        ("ten", 2, "'ten' is not an amount of dollars"),
        ("", 2, "'' is not an amount of dollars"),
        ("0.0000001", 2, "finer than a millionth"),
        ("0.001", 4, "$0.0010 does not buy one useful step on local"),
    ],
)
def test_budgets_that_are_none(user: User, amount: str, code: int, says: str) -> None:
    assert says in user.refused(*LAUNCH, f"--budget={amount}", code=code)


@pytest.mark.parametrize(
    ("arguments", "code", "says", "next_step"),
    [
        (("launch", "9xFOO"), 2, "unknown hardware '9xFOO'", ""),
        (("launch", "8xH10"), 2, "unknown hardware '8xH10'", "did you mean 8xH100?"),
        (("launch", "locl"), 2, "unknown hardware 'locl'", "did you mean local?"),
        (("launch", "A100"), 2, "does not say how many GPUs", "8xA100"),
        (("launch", "8xA100", "--budget", "500", "-y"), 9, "no data of its own", "--data PATH"),
        (("launch", "8xA100", "--rate", "3"), 2, "--rate is the price of this machine", ""),
        (("launch", "local", "--recipe", "trm-tny"), 3, "no recipe", "did you mean trm-tiny?"),
        (("launch", "local", "--recipe", "./no.toml"), 3, "no recipe file no.toml", ""),
        (("launch",), 2, "missing argument 'HARDWARE'", "trmcloud launch --help"),
        (("launch", "p-abcd"), 3, "no plan p-abcd", "trmcloud plan"),
        ((*LAUNCH, "--phase", "sideways"), 2, "--phase is one of", "trmcloud launch --help"),
        ((*LAUNCH, "--phase", "train"), 2, "has no phase 'train'", "phases: fast, extreme"),
        ((*LAUNCH, "--steps", "5", "--hours", "1"), 2, "exclude one another", ""),
        ((*LAUNCH, "--steps", "0"), 2, "--steps must be above zero", ""),
        ((*LAUNCH, "--steps", "many"), 2, "'--steps'", ""),
        ((*LAUNCH, "--hours", "nan"), 2, "--hours must be above zero", ""),
        ((*LAUNCH, "--tokens=-3"), 2, "--tokens must be above zero", ""),
        ((*LAUNCH, "--budget", "1", "--json"), 2, "--json goes with --dry-run", ""),
        ((*LAUNCH, "--budget", "1", "--rate", "0"), 2, "--rate: '0' is not above zero", ""),
        ((*LAUNCH, "--processes", "100000"), 2, "100000 processes are more than", "--processes"),
        ((*LAUNCH, "--processes=-1"), 2, "--processes must be above zero", ""),
        ((*LAUNCH, "--budget", "1", "--from", "nothing"), 3, "no such run", "trmcloud status"),
        (("launch", "local", *SMALL, "--budget", "1"), 2, "there is nobody to ask", "add -y"),
        (("plan", "--recipe", "hdp", "--phase", "extreme"), 2, "no phase 'extreme'", "train"),
        (("plan", "--objective", "worst"), 2, "unknown objective", "value"),
        (("plan", "--budget", "ten"), 2, "'ten' is not an amount", ""),
        (("budget", "set", "month", "ten"), 2, "'ten' is not an amount", ""),
        (("budget", "set", "week", "5"), 2, "no budget level 'week'", "month"),
        (("budget", "set", "month", "5", "--for", "2026-13"), 2, "is no month", ""),
        (("prune", "--keep-best", "0"), 2, "--keep-best is at least 1", ""),
        (("sample", "--max-tokens", "0"), 2, "--max-tokens 1–4096", ""),
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
        ("dpeth=3", 2, "no setting named 'dpeth'", "did you mean 'depth'?"),
        ("recipe=x", 2, "no setting named 'recipe'", ""),
        ("depth", 2, "--set takes KEY=VALUE", "--set depth=8"),
        ("depth=three", 2, "depth takes a whole number", ""),
        ("depth=1.5", 2, "depth takes a whole number", ""),
        ("depth=0", 2, "depth must be above zero", ""),
        ("matrix_lr=nan", 2, "matrix_lr takes a number", ""),
        ("compile=maybe", 2, "compile takes true or false", ""),
        ("dtype=float8", 2, "dtype is one of", "float"),
        ("width=33", 2, "width 33 is not a multiple of head_dim 32", "--set width=32"),
        ("head_dim=64", 2, "width 32 is not a multiple of head_dim 64", "--set head_dim=32"),
        ("head_dim=1", 2, "head_dim 1 is odd", ""),
        ("optimizer=adamw", 2, "runs with optimizer = muon only", ""),
        ("cooldown_fraction=2", 2, "lies between 0 and 1", ""),
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


def test_a_recipe_without_a_trainer_is_not_launched(user: User) -> None:
    arguments = ("--recipe", "d24", "--data", "python-stdlib", "--rate", "1", "--budget", "100")
    err = user.refused("launch", "local", *arguments, "-y", code=12)
    assert "its trainer is not there yet" in err
    assert "none: plan only" in user.run("launch", "local", *arguments, "--dry-run")
    assert user.ledger().runs == {}


def test_commands_before_any_run(user: User) -> None:
    assert user.run("status").startswith("no runs yet")
    assert user.json("status", "--json") == []
    assert user.run("report") == "no runs yet\n"
    assert user.json("report", "--json") == []
    assert len(user.run("report", "--csv").splitlines()) == 1
    assert "no cap was ever set" in user.run("budget", "history")
    for command in ("logs", "gate", "fetch-best", "sample", "eval", "stop", "resume", "prune"):
        assert "there are no runs yet" in user.refused(command, code=3)
        assert "no run 'r-nope'" in user.refused(command, "r-nope", code=3)
    assert "no run 'r-nope'" in user.refused("status", "r-nope", code=3)
    assert "no run 'r-nope'" in user.refused("tensorboard", "r-nope", code=3)


def test_saved_plans(user: User) -> None:
    made = user.json("launch", "local", *SMALL, "--phase", "fast", "--budget", "1",
                     "--dry-run", "--json")  # fmt: skip
    path = user.home / "plans" / f"{made['id']}.json"
    err = user.refused("launch", made["id"], "--budget", "2", "-y", code=2)
    assert f"--budget would change plan {made['id']}" in err
    expired = json.loads(path.read_text()) | {"expires_at": time.time() - 7200}
    path.write_text(json.dumps(expired))
    assert "expired 2.0 h ago" in user.refused("launch", made["id"], "-y", code=2)
    for text in ("{", "[]", '{"version": 99}', "\x00\xff"):
        path.write_text(text)
        assert "cannot be read: it is damaged" in user.refused("launch", made["id"], "-y", code=2)


# -- data, with the real trainer's own preparation ----------------------------------------------


@pytest.fixture
def reader(user: User) -> User:
    """A user whose text is read by the real trainer."""
    user.trainer = None
    return user


def _no_file(folder: Path) -> str:
    return "gone.txt"


def _empty(folder: Path) -> str:
    (folder / "empty.txt").write_bytes(b"")
    return "empty.txt"


def _binary(folder: Path) -> str:
    (folder / "binary.txt").write_bytes(bytes(range(256)) * 100)
    return "binary.txt"


def _tiny(folder: Path) -> str:
    (folder / "tiny.txt").write_text("hi there\n")
    return "tiny.txt"


def _no_text(folder: Path) -> str:
    (folder / "nothing").mkdir()
    (folder / "nothing" / "image.png").write_bytes(b"\x89PNG")
    return "nothing"


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (_no_file, "no such file or folder"),
        (_empty, "the training text is empty"),
        (_binary, "not UTF-8 text"),
        (_tiny, "smaller than one batch: 3 tokens to train on, 260 needed"),
        (_no_text, "holds no text (1 files skipped)"),
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


@pytest.fixture
def mortal() -> tuple[str, ...]:
    """A wrapper under which permissions count, for root too."""
    if os.geteuid() != 0:
        return ()
    if shutil.which("setpriv") is None:
        pytest.skip("root may read everything, and setpriv is not here")
    return ("setpriv", "--bounding-set=-dac_override,-dac_read_search")


def test_data_without_permission(reader: User, mortal: tuple[str, ...]) -> None:
    reader.wrapper = mortal
    (reader.folder / "texts").mkdir()
    path = reader.folder / "texts" / "mine.txt"
    path.write_text("text " * 1000)
    path.chmod(0)
    for source in (path, path.parent):
        small = [part.replace("python-stdlib", str(source)) for part in SMALL]
        err = reader.refused("launch", "local", *small, "--budget", "1", "-y", code=9)
        assert "cannot be read" in err


def test_more_characters_than_the_vocabulary(reader: User) -> None:
    (reader.folder / "chars.txt").write_text("".join(map(chr, range(32, 1000))) * 20)
    small = [part.replace("python-stdlib", "chars.txt") for part in SMALL]
    arguments = ("--set", "tokenizer=char", "--budget", "1", "-y")
    err = reader.refused("launch", "local", *small, *arguments, code=9)
    assert "968 different characters" in err
    assert "--set vocab_size=969" in err


def test_two_commands_that_prepare_the_same_text(reader: User) -> None:
    (reader.folder / "text.txt").write_text("def f(x):\n    return x\n" * 3000)
    small = [part.replace("python-stdlib", "text.txt") for part in SMALL]
    small = [part.replace("vocab_size=256", "vocab_size=512") for part in small]
    racing = [reader.start("launch", "local", *small, "--budget", "1") for _ in range(3)]
    for process in racing:
        _, err = process.communicate(timeout=120)
        assert process.returncode == 2
        assert "there is nobody to ask" in err
    folders = [path for path in (reader.home / "data").iterdir() if path.is_dir()]
    assert len(folders) == 1
    assert (folders[0] / "meta.json").exists()


# -- this machine --------------------------------------------------------------------------------


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
        assert "pip install 'trmcloud[train]'" in err
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
        assert "checkpoints need 0.07 GB and the disk has 0.02 GB free" in err
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


# -- a run that has ended, in a home of its own for every test -----------------------------------


@pytest.fixture(scope="module")
def ended_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    user = User(tmp_path_factory.mktemp("ended"))
    user.run(*LAUNCH, "--steps", "40", "--budget", "1")
    yield user.home
    user.end_everything()


@pytest.fixture
def owner(user: User, ended_home: Path) -> User:
    """A user with one finished run of two checkpoints."""
    shutil.copytree(ended_home, user.home)
    return user


def best_of(user: User) -> Path:
    return next(user.home.glob("runs/*/fast/checkpoints/step-00000040"))


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


def _overwrite(path: Path) -> None:
    path.write_text("garbage")


def _make_empty(path: Path) -> None:
    path.write_bytes(b"")


def _flip_bit(path: Path) -> None:
    with sqlite3.connect(path) as conn:
        [(body,)] = conn.execute("SELECT body FROM events WHERE kind = 'Settled'")
        conn.execute("UPDATE events SET body = ? WHERE kind = 'Settled'", (body.replace("0", "1"),))
    conn.close()


def _age(path: Path) -> None:
    with sqlite3.connect(path) as conn:
        conn.execute("UPDATE meta SET version = 99")
    conn.close()


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (_truncate, "the ledger is damaged"),
        (_overwrite, "the ledger is damaged"),
        (_make_empty, "the ledger is damaged: it is empty"),
        (_flip_bit, "was changed after it was written"),
        (_age, "a newer trmcloud wrote this ledger"),
        (Path.unlink, "the ledger is missing, though one was here"),
    ],
)
def test_a_ledger_that_cannot_be_believed(
    owner: User, harm: Callable[[Path], None], says: str
) -> None:
    harm(owner.home / "ledger.db")
    for arguments in (("status",), (*LAUNCH, "--budget", "1"), ("fetch-best",), ("resume",)):
        assert says in owner.refused(*arguments, code=7)
    assert len(list(owner.home.glob("runs/*"))) == 1


def test_a_locked_ledger(owner: User) -> None:
    conn = sqlite3.connect(owner.home / "ledger.db", isolation_level=None)
    conn.execute("BEGIN EXCLUSIVE")
    try:
        assert "another process has held the ledger for 5 s" in owner.refused("status", code=7)
    finally:
        conn.close()
    owner.run("status")


def test_a_backup_is_accepted_and_what_it_forgot_is_found_and_charged(owner: User) -> None:
    """The ledger is put back to what it was before its only run."""
    (run,) = owner.ledger().runs.values()
    with sqlite3.connect(owner.ledger_path) as conn:
        conn.execute("DELETE FROM events")
        conn.execute("DELETE FROM drivers")
    conn.close()
    for arguments in (("status",), (*LAUNCH, "--budget", "1")):
        said = owner.refused(*arguments, code=7)
        assert "lacks records it once had" in said
        assert "reap --accept-restored" in said
    said = owner.run("reap", "--accept-restored", "--yes")
    until(lambda: "is reconciled" in said or "is reconciled" in owner.run("reap", "--yes"))
    ledger = owner.ledger()
    (stray,) = ledger.strays.values()
    assert ledger.runs == {}
    assert (stray.pod_name, stray.billed) == (run.generations[0].pod_name, run.settled)
    assert ledger.line("account", "").settled == run.settled > ZERO
    assert f"of that, {run.settled} for pods that nobody asked for" in owner.run("budget", "show")
    assert "nothing to accept" in owner.refused("reap", "--accept-restored", code=2)


def _flip_weights(folder: Path) -> None:
    path = folder / "weights.safetensors"
    data = bytearray(path.read_bytes())
    data[1000] ^= 1
    path.write_bytes(data)


def _lose_weights(folder: Path) -> None:
    (folder / "weights.safetensors").unlink()


def _link_weights(folder: Path) -> None:
    path = folder / "weights.safetensors"
    path.rename(folder.parent / "elsewhere")
    path.symlink_to(folder.parent / "elsewhere")


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (_flip_weights, "weights.safetensors is damaged"),
        (_lose_weights, "weights.safetensors is missing"),
        (_link_weights, "weights.safetensors is a link"),
    ],
)
def test_a_damaged_checkpoint_is_not_fetched(
    owner: User, harm: Callable[[Path], None], says: str
) -> None:
    harm(best_of(owner))
    assert says in owner.refused("fetch-best", "--into", "best", code=10)
    assert not (owner.folder / "best").exists()
    # The one before it is still there to be had.
    fetched = owner.json("fetch-best", "--step", "20", "--into", "earlier", "--json")
    assert fetched["checkpoint"] == "fast/step-00000020"


@pytest.mark.parametrize(
    "harm",
    [
        lambda manifest: None,
        lambda manifest: "{",
        lambda manifest: manifest.replace('"weights.safetensors"', '"../weights.safetensors"'),
        lambda manifest: manifest.replace('"weights.safetensors"', '"/etc/passwd"'),
        lambda manifest: manifest.replace('"step": 40', '"step": 41'),
    ],
    ids=["none", "no JSON", "parent folder", "absolute", "another's"],
)
def test_a_checkpoint_whose_manifest_is_no_good_is_none(
    owner: User, harm: Callable[[str], str | None]
) -> None:
    folder = best_of(owner)
    text = (folder / "manifest.json").read_text()
    (folder / "manifest.json").unlink()
    changed = harm(text)
    if changed is not None:
        (folder / "manifest.json").write_text(changed)
    assert owner.json("fetch-best", "--json")["checkpoint"] == "fast/step-00000020"
    assert "damaged" in owner.run("status", owner.only_run().run_id)
    shutil.rmtree(folder.with_name("step-00000020"))
    err = owner.refused("fetch-best", "--into", "more", code=10)
    assert "has no complete checkpoint; fast/step-00000040" in err
    if changed is not None and '"step": 41' not in changed:
        assert owner.refused("launch", "local", *SMALL, "--budget", "1", "-y", "--from",
                             str(folder), code=10)  # fmt: skip


def test_nothing_starts_from_a_damaged_checkpoint(owner: User) -> None:
    _flip_weights(best_of(owner))
    arguments = (*LAUNCH, "--budget", "1", "--from", str(best_of(owner)))
    assert "not what its manifest says" in owner.refused(*arguments, code=10)
    owner.trainer = None
    for command in ("sample", "eval"):
        err = owner.refused(command, str(best_of(owner)), code=10)
        assert "weights.safetensors does not have the hash its manifest says" in err
    empty = owner.folder / "empty"
    empty.mkdir()
    assert "no checkpoint here" in owner.refused("sample", str(empty), code=10)


def test_nothing_starts_from_weights_of_another_shape(owner: User) -> None:
    run = owner.only_run().run_id
    err = owner.refused(*LAUNCH, "--budget", "1", "--set", "width=64", "--from", run, code=10)
    assert "trained with width 32, not 64" in err
    assert "--set width=32" in err


def test_fetch_best_spares_what_is_there(owner: User) -> None:
    taken = owner.folder / "taken"
    taken.mkdir()
    (taken / "thesis.txt").write_text("my only copy")
    assert "holds something else" in owner.refused("fetch-best", "--into", "taken", code=8)
    assert (taken / "thesis.txt").read_text() == "my only copy"
    (owner.folder / "file").write_text("mine")
    assert "something else stands" in owner.refused("fetch-best", "--into", "file", code=8)
    err = owner.refused("fetch-best", "--into", "file/best", code=1)
    assert "not a directory" in err
    assert (owner.folder / "file").read_text() == "mine"
    assert "has no checkpoint at step 7" in owner.refused("fetch-best", "--step", "7", code=3)
    assert "has no checkpoint" in owner.refused("fetch-best", "--phase", "extreme", code=3)


def test_a_run_that_is_over_is_neither_stopped_nor_resumed(owner: User) -> None:
    assert "has ended already: finished" in owner.refused("stop", code=8)
    assert "has finished: there is nothing to resume" in owner.refused("resume", code=8)
    assert "has no metrics" in owner.refused("gate", "--phase", "extreme", code=3)
    assert "has no log of extreme" in owner.refused("logs", "--phase", "extreme", code=3)


def test_a_home_that_became_read_only(owner: User, mortal: tuple[str, ...]) -> None:
    """Looking still works where nothing has to be written."""
    before = owner.run("status")
    owner.wrapper = mortal
    folders = [owner.home, *(path for path in owner.home.rglob("*") if path.is_dir())]
    for path in folders:
        path.chmod(0o555)
    try:
        assert owner.run("status") == before
        owner.run("report")
        for arguments in (("plan",), (*LAUNCH, "--budget", "1")):
            assert "the plan cannot be saved" in owner.refused(*arguments, code=8)
        assert "the ledger cannot be used" in owner.refused("budget", "set", "month", "5", code=7)
        err = owner.refused("fetch-best", "--into", str(owner.home / "best"), code=1)
        assert "permission denied" in err
    finally:
        for path in folders:
            path.chmod(0o755)


def test_a_stale_process_id(user: User) -> None:
    """The ledger says that a process drives the run; that process is long gone."""
    process = user.start(*LAUNCH, "--steps", "100000", "--budget", "0.02")
    until(lambda: bool(list(user.home.glob("runs/*/fast/checkpoints/step-*"))))
    process.kill()
    process.communicate()
    run = user.only_run()
    user.run("stop", run.run_id)
    assert not user.only_run().live


def test_a_second_launch_of_a_running_run(user: User) -> None:
    process = user.start(*LAUNCH, "--steps", "100000", "--budget", "1")
    until(lambda: bool(list(user.home.glob("runs/*/fast/checkpoints/step-*"))))

    def ended() -> RunState | None:
        return None if user.only_run().live else user.only_run()

    run = user.only_run().run_id
    for arguments in (("resume", run), ("prune", run)):
        assert "is running" in user.fails(*arguments, code=8)
    user.run("stop", run, "-d")
    process.communicate(timeout=60)
    assert process.returncode == 21
    assert ended() is not None


# -- odd but right -------------------------------------------------------------------------------


def test_any_characters_in_paths_and_prompts(new_user: NewUser) -> None:
    user = new_user("a 'quoted\" user – 用户 é")
    (user.folder / "my text; $(rm).txt").write_text("def f(x):\n    return x\n" * 3000)
    small = [part.replace("python-stdlib", "my text; $(rm).txt") for part in SMALL]
    user.run("launch", "local", *small, "--phase", "fast", "--steps", "20", "--budget", "1", "-y")
    fetched = user.json("fetch-best", "--into", 'the "best" – 最好', "--json")
    assert Path(fetched["folder"]).name == 'the "best" – 最好'
    assert (user.folder / 'the "best" – 最好' / "manifest.json").exists()
    assert 'the "best" – 最好' in user.run("status", fetched["run"])


def test_folders_named_like_packages_are_not_imported(user: User) -> None:
    for name in ("model", "torch", "sky", "json", "rich", "typer", "numpy", "tokenizers"):
        (user.folder / name).mkdir()
        (user.folder / name / "__init__.py").write_text(f"raise SystemExit('imported {name}')")
    command = Path(sys.executable).with_name("trmcloud")
    if not command.exists():
        pytest.skip("the trmcloud command is not installed here")
    arguments = (*LAUNCH, "--steps", "20", "--budget", "1")
    done = subprocess.run(
        [command, *arguments], cwd=user.folder, env=user.env(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "imported" not in done.stdout + done.stderr


def test_a_folder_that_is_gone(owner: User) -> None:
    gone = owner.folder / "gone"
    gone.mkdir()
    command = f"rmdir ../gone; exec {sys.executable} -P -m trmcloud"
    for arguments, code, says in (
        ("status", 0, ""),
        ("fetch-best", 2, "the folder you are in is gone"),
    ):
        gone.mkdir(exist_ok=True)
        done = subprocess.run(
            ["sh", "-c", f"{command} {arguments}"],
            cwd=gone, env=owner.env(), capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        assert says in done.stderr
        assert "Traceback" not in done.stderr


def test_output_that_nobody_can_take(owner: User) -> None:
    python = f"{sys.executable} -P -m trmcloud"
    for command, code, says in (
        (f"{python} status | true", 0, ""),
        (f"{python} status >&-", 0, ""),
        (f"{python} nothing 2>&-", 2, ""),
        (f"{python} report >/dev/full", 1, "free some disk space"),
    ):
        done = subprocess.run(
            ["sh", "-c", command], cwd=owner.folder, env=owner.env(), capture_output=True, text=True
        )
        assert done.returncode == code, (command, done.stderr)
        assert says in done.stderr
        assert "Traceback" not in done.stderr
        assert "unexpected" not in done.stderr


def test_a_terminal_that_knows_ascii_alone(owner: User) -> None:
    owner.environment |= {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    run = owner.only_run().run_id
    for arguments in (("status", run), ("report",), ("plan", "--budget", "100"), ("--help",)):
        assert owner.run(*arguments).isascii()
    assert "ok python" in owner.run("doctor")
    assert "no such file" in owner.refused(*LAUNCH, "--budget", "1", "--data", "é.txt", code=9)


def test_two_homes_do_not_meet(new_user: NewUser) -> None:
    users = [new_user("ada"), new_user("bob")]
    running = [
        user.start(*LAUNCH, "--steps", str(steps), "--budget", "1")
        for user, steps in zip(users, (40, 100_000), strict=True)
    ]
    until(lambda: bool(users[1].live_pods()))
    out, err = running[0].communicate(timeout=60)
    assert running[0].returncode == 0, out + err
    users[0].run("status")
    assert users[1].live_pods()
    users[1].run("stop")
    running[1].communicate(timeout=60)
    assert not users[1].only_run().live
    assert len(users[0].ledger().runs) == 1
