"""Every command that the README and the guides show is run, literally, in a world of stand-ins.

One command of each guide always runs, after a run of the stand-in trainer; all of them are a long
target (``make written-commands``). Ids are those of that world. There this machine trains for real,
a net that ``TRMCLOUD_TEST_SETTINGS`` makes small; RunPod's stand-in keeps books and has nothing to
rent, so a launch there goes all the way to being told so; SkyPilot is not installed, and is asked
for by name before anything is rented.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.e2e import hinted, web_corpus, written
from tests.e2e.test_data import SETTINGS
from tests.e2e.test_mission import MISSION
from tests.e2e.test_terminal import Terminal
from tests.e2e.user import User, real_trainer
from tests.e2e.written import Written
from tests.standins.data_host import DataHost, serving
from tests.standins.runpod.fixture import judged
from tests.standins.s3 import S3, s3
from trmcloud.adapters.ledger.sqlite import SqliteLedger
from trmcloud.core.control import events as ev
from trmcloud.core.errors import NotifyError, Outcome

__all__ = ["s3"]

pytestmark = pytest.mark.timeout(1500)

#: How a command may end beside well, in a world that has nothing to rent.
ENDS = {
    "launch": (Outcome.NOT_STARTED.exit_code, Outcome.NO_MACHINE.exit_code),
    "doctor": (1,),
    "admin notify": (NotifyError.exit_code,),  # nobody is there to be told
}
#: What a command may be refused for, by name and before anything is rented.
REFUSALS = {
    "launch": ("SkyPilot is not installed",),
    "doctor": ("SkyPilot is not installed",),
    "resume": ("has finished: there is nothing to resume",),
    "smoke": ("has no GPU in stock",),
    "save": ("is not training: it has ended",),  # each launch here has ended by then
    "stop": ("has already ended",),
    "fetch-best": ("has no checkpoint yet",),  # the launch before it found nothing to rent
}
FIRST = "launch local --recipe trm-tiny --phase fast --processes 2 --rate 3.60 --budget 0.20 -y"
#: What needs a run of its own kind: where it is run as it is written, and to its end.
SHARED_OUT = (
    "launch local --recipe d64-small --set sharding=fsdp --processes 2 --rate 3.60 --budget 0.40"
    " --steps 120 --set save_every=20 --set eval_every=20 --bucket s3://my-bucket/d64 -y -d"
)
#: What plans or writes and trains nothing, of a recipe that knows no sequence as short as here.
UNTRAINED = re.compile(r"^(launch .* --dry-run|export .*)$")
QUESTION = (
    "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May."
    " How many clips did Natalia sell altogether in April and May?"
)
POST_TRAINED = "run local --rate 3.60 --budget 0.40 --grace 10 --checkpoint-gb 0.01 --checkpoints"
OTHER_WORLDS = {
    "agents.md": "an agent's conversation: scripts/guides.py agents, tests/e2e/test_mcp.py",
    "team.md": "a database: tests/e2e/test_shared_ledger.py",
    "questions.md": "an empty folder: tests/unit/planner/test_questions.py",
}
"""Guides whose commands need more than one reader, or a world of their own."""
SWEEP = (
    "sweep local --recipe shakespeare --rate 3.60 --budget 1 --processes 2 --slots 2 -y "
    "lr=log:1e-3,1e-1 depth=2,4"
)
ELSEWHERE = {
    **dict.fromkeys(MISSION, "with pods that train: tests/e2e/test_mission.py"),
    "fetch-best ./trmcloud-run": "tests/e2e/test_export.py",
    "launch local --recipe bd3lm-small --rate 3.60 --budget 3 -y": (
        "half an hour: tests/model/test_block_diffusion.py"
    ),
    "launch local --recipe hdp-small --rate 3.60 --budget 3 -y": (
        "likewise: tests/e2e/test_real_trainer.py"
    ),
    "eval best": "of what that launch left",
    "sweep 1xH100 --budget 20 --checkpoints out --metric val_loss --resume python train.py "
    "--lr {lr} --resume {checkpoint} lr=log:1e-5,1e-3 -- python train.py --lr {lr}": (
        "wants a pod: tests/e2e/test_sweep.py"
    ),
    SWEEP: "a quarter of an hour: tests/e2e/test_sweep.py",
    "sweep local --recipe shakespeare --data ../text --rate 3.60 --budget 0.60 --processes 1 -y "
    "--set depth=1 --set sequence=64 --set steps=200 --set eval_tokens=8192 --default width=32 "
    "lr=log:1e-3,1e-1 width=32,64,128": "ten minutes: tests/e2e/test_sweep.py",
    "launch local --goal chat-tiny --rate 3.60 --budget 2 -y": "minutes: tests/model/test_chat.py",
    "fetch-best --into chat": "of what that launch left",
    "eval chat --task core --data local_data --limit 20": "likewise: tests/model/test_tasks.py",
    "sample chat --prompt What is the capital of France? --temperature 0": "likewise",
    "fetch-best chat --to hf --into chat-hf": "likewise: tests/model/test_export.py",
    SHARED_OUT: "minutes, and a kill: tests/e2e/test_sharded.py",
    "resume --processes 3 -y": "of what that launch left",
    "resume --processes 1 -y": "likewise",
    "fetch-best --into last": "likewise",
    "fetch-best --for-inference --into hdp-best": "likewise: tests/e2e/test_real_trainer.py",
    "eval hdp-best": "likewise",
    f"sample hdp-best --prompt {QUESTION} --temperature 0": "likewise",
    "eval hdp-best --task gsm8k --data gsm8k-test.jsonl --limit 8": "likewise",
    "smoke --train --recipe gpt350m --hardware local -y": (
        "minutes: tests/e2e/test_smoke_training.py"
    ),
    "doctor --gpu": "ends with 2 where there is no GPU: tests/model/test_gpu.py",
    "ssh RUN -- nvidia-smi --query-gpu=name,memory.total --format=csv": (
        "wants a pod: tests/e2e/test_runpod.py"
    ),
    **dict.fromkeys(
        (
            "smoke --provider huggingface --max-usd 0.60 --minutes 0.7 -y",
            "launch 1xL4 --provider huggingface --recipe trm-tiny --phase fast --steps 40 "
            "--budget 0.50 --data notes.txt --accept-loss -y -d",
            "launch 1xL4 --provider huggingface --recipe trm-tiny --phase fast --steps 40 "
            "--budget 0.50 --data notes.txt -y",
        ),
        "wants a Hub: tests/e2e/test_huggingface.py",
    ),
    **dict.fromkeys(
        (
            "smoke --provider vast --max-usd 0.60 --minutes 1 -y",
            "plan --hardware 1xRTX4090 --provider vast --recipe trm-tiny --phase fast --steps 40 "
            "--budget 0.50 --data notes.txt",
            "launch 1xRTX4090 --provider vast --recipe trm-tiny --phase fast --steps 40 "
            "--budget 0.50 --data notes.txt -y",
        ),
        "wants vast.ai's market: scripts/guides.py vast; a launch: tests/e2e/test_vast.py",
    ),
    **dict.fromkeys(
        (
            "admin notify add ntfy https://ntfy.sh/a-topic-of-your-own",
            "admin notify add email mailtos://USER:PASSWORD@smtp.example.org?to=you@example.org",
            "admin notify add slack https://hooks.slack.com/services/T…/B…/…",
        ),
        "would be told of all that follows: tests/contract/test_senders.py",
    ),
    **dict.fromkeys(
        (
            "launch --rate 3.60 --budget 0.05 --dry-run",
            "launch --rate 3.60 --budget 0.05 -y",
        ),
        "wants a script: tests/e2e/test_run.py",
    ),
    **dict.fromkeys(
        (
            "try --for 20 --grace 5 --write -- python train.py",
            "run local --rate 1 --budget 1 --checkpoints out --checkpoint-gb 0.01 "
            "--metric val_loss --grace 5 -- python train.py",
        ),
        "likewise: tests/e2e/test_try.py",
    ),
    **dict.fromkeys(
        (
            "try --for 20 --grace 5 --resume python sft.py --resume {checkpoint} -- python sft.py",
            "run local --rate 1 --budget 1 --checkpoints sft --checkpoint-gb 0.01 "
            "--metric eval_loss --grace 5 --resume python sft.py --resume {checkpoint} "
            "-- python sft.py",
            f"{POST_TRAINED} sft --metric eval_loss -y -- python sft.py",
            f"{POST_TRAINED} lora --metric eval_loss -y -- python lora.py",
            f"{POST_TRAINED} grpo --metric reward --best max -y -- python grpo.py",
            "run 1xH100 --budget 20 --pip requirements.txt --checkpoint-gb 20 --checkpoints sft "
            "--metric eval_loss --resume python sft.py --resume {checkpoint} -- python sft.py",
        ),
        "wants TRL: tests/e2e/test_post_training.py",
    ),
    **dict.fromkeys(
        (f"fetch-best --into {name}-best" for name in ("sft", "lora", "grpo")),
        "of what these runs left",
    ),
    "serve best": "serves until Ctrl-C: tests/e2e/test_serve.py",
    "ui": "serves until Ctrl-C: tests/e2e/test_ui.py",
    "mcp --grant agent": "serves until its client leaves: tests/e2e/test_mcp.py",
    "report --to tensorboard RUN --port 6006": "serves until Ctrl-C: tests/e2e/test_boards.py",
    "report --to wandb RUN": "wants W&B, or WANDB_MODE=offline: tests/e2e/test_boards.py",
    "eval best --task gsm8k --data gsm8k-test.jsonl --limit 8": "likewise",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("written")


@pytest.fixture
def reader(folder: Path, tmp_path: Path, s3: S3) -> Iterator[User]:
    """A user who reads the documents from the top, at a machine on which their files lie."""
    with reading(folder, s3) as user:
        user.trainer = real_trainer(tmp_path / "trainer")
        user.pace(0.4)
        yield user


@contextlib.contextmanager
def reading(folder: Path, s3: S3) -> Iterator[User]:
    """Such a user, with the stand-in trainer."""
    host = web_corpus.put_on(DataHost(), folder / "corpus")
    settings = folder / "small.toml"
    settings.write_text(SETTINGS)
    for name in ("text.txt", "notes.txt"):
        (folder / name).write_text("To be, or not to be: that is the question.\n" * 4000)
    s3.client.create_bucket(Bucket="my-bucket")
    with serving(host), judged(folder / "runpod", real_pods=False) as standin:
        standin.control.set(no_capacity=["*"])
        user = User(folder)
        user.environment |= {
            **standin.environment,
            "TRMCLOUD_TEST_SETTINGS": str(settings),
            "OMP_NUM_THREADS": "1",
            **host.environment,
            **s3.environment,
        }
        yield user
        user.end_everything()


#: What one command of a guide may be: the first that looks, or else one that plans or writes.
CHEAP = (
    *(
        "status",
        "report",
        "fetch-best",
        "data",
        "budget",
        "logs",
        "plan",
        "admin notify list",
        "export",
    ),
    *("launch 1xH200", "rehearse", "doctor"),
)


def test_one_command_of_each_guide_runs(tmp_path: Path, s3: S3) -> None:
    found: dict[str, Written] = {}
    for start in CHEAP:
        for command in written.commands():
            text = written._RUN.sub("RUN", command.text)
            known = text in ELSEWHERE or command.document in OTHER_WORLDS or command.refused
            if not known and f"{text} ".startswith(f"{start} "):
                found.setdefault(command.document, command)
    everywhere = {command.document for command in written.commands()}
    here = {c.document for c in written.commands() if written._RUN.sub("RUN", c.text) in ELSEWHERE}
    assert everywhere - set(found) <= here | set(OTHER_WORLDS), "a guide without any command"
    with reading(tmp_path, s3) as user:
        code, shown = typed(user, FIRST.split())
        assert code == 0, shown
        run_id = next(iter(user.ledger().runs))
        for command in {each.text: each for each in found.values()}.values():
            at = as_shipped(user) if UNTRAINED.search(command.text) else user
            code, shown = typed(at, command.in_world(run_id, "p-0000"))
            problem = wrong_with(command, code, shown)
            assert not problem, f"{command.document}:{command.line}: {command.text}\n  {problem}"


@pytest.mark.more
def test_every_command_of_readme_and_guides_runs(reader: User) -> None:
    (reader.folder / "train.py").write_text("print('step=1 loss=1.0')\n")
    seen: set[str] = set()
    wrong = []
    run_id, plan_id = "", ""
    # What one guide caps would bind in the next.
    for command in sorted(written.commands(), key=lambda one: one.document == "budget.md"):
        text = written._RUN.sub("RUN", command.text)
        if text in seen or text in ELSEWHERE or command.document in OTHER_WORLDS:
            continue
        seen.add(text)
        user = as_shipped(reader) if UNTRAINED.search(text) else reader
        code, shown = typed(user, command.in_world(run_id, plan_id))
        if command.text == FIRST:
            assert code == 0, shown
            run_id = next(iter(reader.ledger().runs))
            _verify_layers(reader)
        if user is reader and (found := re.search(r"launch (p-[0-9a-f]{4})", shown)) is not None:
            plan_id = found[1]
        if problem := wrong_with(command, code, shown):
            wrong.append(f"{command.document}:{command.line}: {command.text}\n  {problem}")
    assert len(seen) > 40
    assert wrong == [], "\n".join(wrong)


def test_a_recipe_that_cannot_be_trained_is_refused_by_name(user: User) -> None:
    shared_out = ("--recipe", "trm-tiny", "--set", "sharding=fsdp", "--budget", "100", "-y")
    err = user.fails("launch", "8xH100", *shared_out, code=12)
    assert "sharding=fsdp does not work with trm" in err


def as_shipped(reader: User) -> User:
    """The same reader, whose nets are as large as their recipes say."""
    environment = {k: v for k, v in reader.environment.items() if k != "TRMCLOUD_TEST_SETTINGS"}
    return replace(reader, environment=environment)


def typed(user: User, words: list[str]) -> tuple[int, str]:
    """Exit code, and what was shown: as on a terminal, where every question is answered with y."""
    terminal = Terminal(user, *words)
    try:
        time.sleep(0.2)
        terminal.types("y\n")
        code = terminal.ends(within_s=300)
    finally:
        terminal.abandon()
    return code, terminal.shown


def wrong_with(command: Written, code: int, shown: str) -> str:
    """Why a command did not do what its document says; empty where it did."""
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    told = shown.strip().splitlines()[-3:]
    unknown = "no such option" in shown or "no command" in shown
    if "Traceback" in shown or unknown or (code == 2 and not command.refused):
        return f"code {code}: {told}"
    if command.refused:
        return "" if code and "error: " in shown else f"the document shows an error: {code} {told}"
    verb = " ".join(command.words[: 2 if command.words[0] == "admin" else 1])
    allowed = {0, *ENDS.get(verb, ())}
    if verb == "launch" and "local" in command.words:
        allowed.add(Outcome.LANDED.exit_code)
    named = verb in REFUSALS and any(text in shown for text in REFUSALS[verb])
    return "" if code in allowed or named else f"code {code}: {told}"


def _verify_layers(user: User) -> None:
    """What a smoke run on a machine to rent would have seen."""
    ledger = SqliteLedger(user.ledger_path)
    for layer in ("agent", "prepaid"):
        ledger.verify_layer(ev.LayerVerified("runpod", layer, "seen in another test"), time.time())


#: What the placeholders of hints stand for in the world of these tests; the rest is said there.
STANDS_FOR = {
    "USD": "100",
    "N": "30",
    "NAME": "gsm8k",
    "ID": "3k2j1h9g8f",
    "HARDWARE": "8xH100",
    "level": "month",
    "line.level": "month",
    "PROJECT_MONTH": "project-month",
    "amount": "500",
    "need": "500",
    "shlex.quote(line.key)": "thesis",
    "over.place": "3k2j1h9g8f",
    "provider": "runpod",
    "request.text": "8xH100",
    "hardware_name(offer.sku, offer.gpus, nodes)": "8xH100",
    "recipe.name": "trm-tiny",
    "spec.budget.plain()": "100",
    "again": "",
    "as_typed": "",
    "2 * done": "60",
    "_for(key)": "",
    "FILE": "written.html",
    "rented": "1xH100",
    "typed": "python3 train.py",
    "one_line(typed_words)[:200]": "python3 train.py",
    "cents / 100": "100",
}
OTHER_DOORS = {
    "mcp": "wants a client: tests/e2e/test_mcp.py",
}
#: Hints that are not carried out here, and why: that they are command lines is held by
#: tests/unit/cli/test_hints.py.
NOT_HERE = {
    "admin guard install --every 5": "puts a timer into this machine's own crontab",
    "admin guard install": "as above",
    "launch local --recipe trm-tiny --rate 3.60 --budget 0.20": "trains for minutes; as FIRST does",
    "launch local --recipe trm-tiny --budget 0.06 --rate 3.60": "as above",
    "sweep local --rate 3.60 --budget 0.50 --recipe shakespeare lr=log:1e-3,1e-1": (
        "trains for minutes: tests/e2e/test_sweep.py"
    ),
    "sweep local --on ray --rate USD": "wants Ray: tests/e2e/test_sweep_ray.py",
    "sweep local": "as above, with settings to search",
    "launch local --rate USD --budget USD": "as above, with a recipe that no CPU can hold",
    "serve r-1f3a9c": "serves until Ctrl-C: tests/e2e/test_serve.py",
    "admin notify add webhook https://example.org/trmcloud": "a host of somebody's",
    "admin notify add webhook URL": "likewise: tests/unit/cli/test_notify.py",
    "admin notify test ⟨0⟩": "likewise",
    "admin notify remove ⟨0⟩": "likewise",
    "grant give NAME USD": "grants and requests: tests/e2e/test_grants.py",
    "grant give NAME 20": "likewise",
    "grant give ⟨0⟩ USD": "likewise",
    "grant raise ⟨0⟩ 40": "likewise",
    "grant raise ⟨0⟩ USD": "likewise",
    "grant raise ⟨0⟩ --bucket ⟨1⟩": "likewise",
    "grant raise ⟨0⟩ --expires 7d": "likewise",
    "grant revoke ⟨0⟩": "likewise",
    "grant revoke ⟨1⟩": "likewise",
    "grant approve ⟨0⟩": "likewise",
    "grant approve ⟨3⟩": "likewise",
    "grant deny ⟨1⟩": "likewise",
    "grant deny ⟨4⟩": "likewise",
    "report --verify ⟨0⟩": "what another of these commands writes: as docs/guide/receipt.md has it",
    "admin ledger restore NUMBER": "another ledger: tests/contract/test_ledger_damage.py",
    "eval FOLDER": "of a checkpoint that came from a pod: tests/e2e/test_real_trainer.py",
    "admin reap --all-of ⟨0⟩": "pods of two ledgers: tests/e2e/test_ending.py",
    "smoke --train --hardware local": "minutes: tests/e2e/test_smoke_training.py",
    "smoke --train --hardware ⟨0⟩ --max-usd ⟨1⟩": "likewise",
    "ui": "serves until Ctrl-C: tests/e2e/test_ui.py",
}
#: How one may end beside well, since what it is meant for is not the case here.
HINT_ENDS = {
    "admin reap --accept-restored": "the ledger was not restored from a backup",
    "admin ledger migrate": "the ledger is a file, and needs no migration",
    "admin ledger restore": "the ledger is not damaged: there is nothing to restore",
    "admin ledger settle": "is neither a run with damaged records nor a damaged record",
    "admin ledger move": "the place to move the ledger to is missing",
    "admin ledger move --to": "the database does not answer",
    "report --to": "has no metrics on this machine",  # the newest, which hoped for a GPU
    "save": "is not training",
    "logs -f": "has no log yet",  # the newest, which hoped for a GPU
    "stop": "has already ended",
    "resume r-": "has finished: there is nothing to resume",
    "run 1xH100 --probe 30 --budget 1 --": "no free machine",
    "run local --budget 1 -- 'python3 train.py'": "command not found",
    "run local --budget 1 -- python": "it left no checkpoint",
    "resume": "this is not a terminal",  # the newest, which hoped for a GPU
    "budget raise project": "the project cap is not set",
    "budget raise project-month": "the project-month cap is not set",
    "data get gsm8k": "was not found: the host answered 404",
    "data check fineweb-edu": "1 of its files cannot be used",  # and not all of that one
    "admin guard status": "installed  no",
    "admin volumes delete": "this ledger has no network volume",
}


@pytest.mark.more
def test_every_command_that_screens_hint_at_runs(reader: User) -> None:
    if not reader.ledger_path.exists():  # or else the test above has made it
        assert typed(reader, FIRST.split())[0] == 0
    run_id = next(iter(reader.ledger().runs))
    _code, shown = typed(reader, ["plan", "--hardware", "8xH100", "--budget", "1000"])
    plan_id = re.search(r"launch (p-[0-9a-f]{4})", shown)
    assert plan_id is not None, shown
    _verify_layers(reader)
    runs = (
        *("RUN", "run", "run or 'RUN'", "names"),
        *("run_id", "run.run_id", "state.run_id", "earlier.run_id", "manifest.run_id"),
        *("run.id", "name[:60]", "name", "hurt.run_id", "lost.name"),
    )
    known = STANDS_FOR | {
        **dict.fromkeys((*runs, "notice.run_id"), run_id),
        **dict.fromkeys(("made.id", "plan.id"), plan_id[1]),
    }
    documented = {
        shlex.join(command.in_world(run_id, plan_id[1])) for command in written.commands()
    }
    seen: set[str] = set()
    wrong = []
    for hint in hinted.hints():
        if hint.is_named_only or hint.text in NOT_HERE or hint.text.split()[0] in OTHER_DOORS:
            continue
        words = [written._RUN.sub(run_id, word) for word in hint.words(known)]
        text = shlex.join(words)
        if text in seen | documented:
            continue
        seen.add(text)
        code, shown = typed(reader, words)
        ends = (0, *ENDS.get(words[0], ()), *ENDS.get(" ".join(words[:2]), ()))
        if "Traceback" in shown or not (code in ends or _told(text, shown)):
            wrong.append(f"{hint.place}: {text}\n  code {code}: {shown.strip().splitlines()[-3:]}")
    assert len(seen) > 25
    assert wrong == [], "\n".join(wrong)


def _told(command: str, shown: str) -> bool:
    """Whether it ended as such a command does where what it is meant for is not the case."""
    return any(command.startswith(start) and why in shown for start, why in HINT_ENDS.items())
