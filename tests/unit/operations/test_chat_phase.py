"""The chat phase: when it runs, what it is planned with, and what its pod is given."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.unit.core.manifests import manifest
from trmcloud.adapters.files import load_recipe
from trmcloud.adapters.prices.tables import load_offers
from trmcloud.core.clock import Instant
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.control.events import PhaseEnded
from trmcloud.core.control.run_state import Generation, RunState
from trmcloud.core.errors import UsageError
from trmcloud.core.money import Usd
from trmcloud.core.planner.planning import make_plan
from trmcloud.core.spec.plan import Plan
from trmcloud.core.spec.settings import PHASES
from trmcloud.core.spec.spec import RunSpec
from trmcloud.operations.pod_request import LaunchData, pod_request
from trmcloud.operations.sending.staging import data_items, weights_for_chat
from trmcloud.options import LaunchRequest, spec_of
from trmcloud.sim.world.store import SimNotes

NOW = 1_795_000_000.0


def plan_of(recipe: str, **wish: Any) -> Plan:
    given: dict[str, Any] = {"phases": PHASES, "hardware": "8xH100", "providers": ("runpod",)}
    spec = RunSpec(recipe, budget=Usd(5000), **{**given, **wish})
    return make_plan(spec, load_recipe(recipe), load_offers(NOW), NOW, "p-0")


def phases_of(plan: Plan) -> dict[str, Any]:
    return {phase.name: phase for phase in plan.candidates[0].phases}


def test_it_runs_only_where_it_is_asked_for_or_has_conversations() -> None:
    assert plan_of("speedrun").spec.phases == ("train",)
    assert plan_of("speedrun", chat_data="talk.jsonl").spec.phases == ("train", "chat")
    assert plan_of("speedrun", phases=("train", "chat")).spec.phases == ("train", "chat")
    assert load_recipe("chat-tiny").usual_phases == ("train", "chat")
    assert load_recipe("speedrun").in_small().usual_phases == ("train",)
    with pytest.raises(UsageError, match="leaves the chat phase out"):
        plan_of("speedrun", phases=("train",), chat_data="talk.jsonl")
    with pytest.raises(UsageError, match="recipe trm has no chat phase"):
        plan_of("trm", chat_data="talk.jsonl")


def test_both_phases_are_planned_and_the_first_as_without_the_second() -> None:
    alone, both = plan_of("speedrun"), plan_of("speedrun", chat_data="talk.jsonl")
    train, chat = phases_of(both)["train"], phases_of(both)["chat"]
    assert train.settings == phases_of(alone)["train"].settings
    assert train.step_s == phases_of(alone)["train"].step_s
    assert both.candidates[0].hours.p50 > alone.candidates[0].hours.p50
    assert 0 < chat.seconds.p50 < train.seconds.p50
    # nanochat's: 0.8 of 0.02, 0.3 and 0.008, and no decay.
    settings = chat.settings
    rates = (settings.matrix_lr, settings.embedding_lr, settings.head_lr)
    assert rates == pytest.approx((0.016, 0.24, 0.0064))
    assert (settings.weight_decay, settings.warmup_steps, settings.rate_floor) == (0, 0, 0)
    assert settings.tokens_per_step(8) == train.settings.tokens_per_step(8) == 1_048_576
    # Epochs are told of the text alone.
    told = [each.text for each in both.candidates[0].reasons if "epochs over" in each.text]
    assert [each.partition(":")[0] for each in told] in ([], ["train"])


@pytest.mark.parametrize("typed", ["train,chat", "chat,train"])
def test_phases_are_named_in_any_order_and_run_in_theirs(typed: str) -> None:
    request = LaunchRequest("local", "chat-tiny", typed)
    spec = spec_of(request, (), NOW, pods_can_upload=True)
    assert spec.phases == ("train", "chat")


def test_a_phase_that_is_none_is_named() -> None:
    with pytest.raises(UsageError, match=r"--phase must be one of .* not 'chats'"):
        spec_of(LaunchRequest("local", phase="train,chats"), (), NOW, pods_can_upload=True)


def test_the_data_of_a_chat_phase_without_another_is_its_conversations() -> None:
    def spec(**more: Any) -> RunSpec:
        return spec_of(
            LaunchRequest("local", "chat-tiny", "chat", **more), (), NOW, pods_can_upload=True
        )

    assert (spec(data="a.jsonl").chat_data, spec(data="a.jsonl").data) == ("a.jsonl", "")
    assert spec(chat_data="a.jsonl") == spec(data="a.jsonl")
    with pytest.raises(UsageError, match="leave out --data"):
        spec(data="a.jsonl", chat_data="b.jsonl")


@pytest.mark.parametrize(
    ("overrides", "what"),
    [
        ({"tokenizer": "bpe"}, "tokenizer=bpe has none"),
        ({"tokenizer": "char"}, "tokenizer=char has none"),
        ({"rows": "bestfit"}, "rows=bestfit does not work in the chat phase"),
    ],
)
def test_settings_that_a_chat_phase_cannot_have(overrides: dict[str, Any], what: str) -> None:
    with pytest.raises(UsageError, match=what):
        load_recipe("chat-tiny").resolve("chat", hardware="local", gpus=1, overrides=overrides)
    with pytest.raises(UsageError, match="rows=chat does not work in the train phase"):
        load_recipe("chat-tiny").resolve(
            "train", hardware="local", gpus=1, overrides={"rows": "chat"}
        )


class Files:
    """The run's checkpoints on this machine."""

    def __init__(self, *manifests: Any) -> None:
        self._manifests = manifests

    def manifests(self, run_id: str) -> tuple[Any, ...]:
        return self._manifests

    def folder_of(self, manifest: Any) -> str:
        return f"/here/{manifest.label}"


TRAINED = (
    manifest(100, 0.9, "train"),
    manifest(200, 0.8, "train"),
)
DONE = {"train": PhaseEnded(1, "train", "finished", 200, 0.8, {})}


def jobs_of(run: RunState, *manifests: Any) -> dict[str, Any]:
    plan = plan_of("speedrun", chat_data="talk.jsonl")
    candidate = plan.candidate(plan.launchable[0])
    generation = Generation(
        1, str(contract.PodName("0badcafe", "r-1", 1, int(NOW + candidate.hard_stop_s))),
        "runpod", candidate.id, candidate.rate,
        NOW + candidate.soft_stop_s, NOW + candidate.hard_stop_s, NOW,
    )  # fmt: skip
    data = LaunchData("/here/text", chat="/here/talk")
    note = {"data_dir": data.folder, "initial_weights": "", "chat_dir": data.chat}
    assert LaunchData.of_note(note) == data
    world = SimpleNamespace(
        home=Path("/home"), clock=None, notes=SimNotes({"r-1": note}), files=Files(*manifests),
        pods=SimpleNamespace(folder=lambda kind, folder: f"/pod/{kind}/{folder.name}"),
    )  # fmt: skip
    made = pod_request(cast(Any, world), run, plan, generation, 1, Instant(NOW, 500.0, "boot-1"))
    return {job.phase: job for job in made.jobs}


def test_a_pod_gets_text_for_one_phase_and_conversations_for_the_other() -> None:
    jobs = jobs_of(RunState("r-1", epoch=1))
    assert jobs["train"].data_dir == "/pod/data/text"
    assert jobs["chat"].data_dir == "/pod/data/talk"
    assert jobs["chat"].initial_weights == ""  # those that the same machine will have trained


def test_another_machine_gets_the_best_weights_of_the_finished_train_phase() -> None:
    run = RunState("r-1", epoch=1, phases=DONE)
    assert weights_for_chat(cast(Any, Files(*TRAINED)), run) == "/here/train/step-00000200"
    assert weights_for_chat(cast(Any, Files()), run) == ""
    assert weights_for_chat(cast(Any, Files(*TRAINED)), RunState("r-1", epoch=1)) == ""
    jobs = jobs_of(run, *TRAINED)
    assert list(jobs) == ["chat"]
    assert jobs["chat"].initial_weights == "/pod/weights/step-00000200"


def test_a_bucket_gets_the_conversations_too(tmp_path: Path) -> None:
    for name in ("text", "talk"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "meta.json").write_text(name)
    items = data_items(str(tmp_path / "text"), "", str(tmp_path / "talk"))
    assert [item.local.name for item in items] == ["text", "talk"]
    assert len({item.remote for item in items}) == 2
