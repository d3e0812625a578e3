"""Which files are one checkpoint, by layouts as their frameworks write them."""

from __future__ import annotations

import json
import os
import pickle
import zipfile
from pathlib import Path

import pytest

from tests.present import present
from trmcloud.core.contract.command import Command
from trmcloud.core.contract.manifest import NAMED_BEST
from trmcloud.operations.checkpoints.fetching import best_of
from trmcloud.pod.job.artifacts import (
    Artifact,
    ArtifactRefused,
    NameNumbers,
    artifact_at,
    files_below,
    find_artifacts,
    marks_of,
    metrics_in,
    names_best,
    step_in,
)
from trmcloud.pod.job.shelf import CommandCheckpoints, restore
from trmcloud.pod.job.watcher import Watcher

TENSORS = (2).to_bytes(8, "little") + b"{}"
BOOSTER = b'{"learner":{"attributes":{}}}'


def lay(root: Path, *names: str, content: bytes = TENSORS) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def found(root: Path, below: str = "out") -> dict[str, tuple[str, int]]:
    """Source → layout, and how many files."""
    return {a.source: (a.kind, len(a.files)) for a in find_artifacts(root, below=below).artifacts}


TRAINER = ("model.safetensors", "config.json", "training_args.bin", "trainer_state.json")
INDEXES: dict[str, object] = {
    "model_index.json": {
        "_class_name": "P",
        "unet": ["diffusers", "U"],
        "vae": [],
        "scheduler": [],
    },
    "modules.json": [{"path": ""}, {"path": "1_Pooling"}, {"path": "2_Dense"}],
}
"""The parts that the index of a pipeline names."""
SPACY = ("config.cfg", "meta.json", "tokenizer", "vocab/strings.json")
LAYOUTS: dict[str, tuple[tuple[str, ...], dict[str, tuple[str, int]]]] = {
    "transformers: checkpoints and a final model in their folder": (
        (
            *(f"out/checkpoint-{n}/{name}" for n in (20, 40) for name in TRAINER),
            *(f"out/checkpoint-{n}/{name}" for n in (20, 40) for name in ("optimizer.pt",)),
            "out/checkpoint-40/rng_state.pth",
            *("out/model.safetensors", "out/config.json", "out/training_args.bin"),
            *("out/tokenizer.json", "out/runs/today/events.out.tfevents.1"),
        ),
        {
            "out": ("transformers-model", 4),
            "out/checkpoint-20": ("transformers-model-and-optimizer", 5),
            "out/checkpoint-40": ("transformers-model-and-optimizer", 6),
        },
    ),
    "arguments alone are no model": (("out/training_args.bin", "out/tokenizer.json"), {}),
    "peft: an adapter": (
        ("out/checkpoint-3/adapter_model.safetensors", "out/checkpoint-3/adapter_config.json"),
        {"out/checkpoint-3": ("transformers-adapter", 2)},
    ),
    "sharded safetensors with their index": (
        (
            *("out/model-00001-of-00002.safetensors", "out/model-00002-of-00002.safetensors"),
            *("out/model.safetensors.index.json", "out/config.json"),
        ),
        {"out": ("transformers-model", 4)},
    ),
    "accelerate: save_state": (
        (
            *("out/checkpoint_0/model.safetensors", "out/checkpoint_0/optimizer.bin"),
            *("out/checkpoint_0/random_states_0.pkl", "out/checkpoint_0/scheduler.bin"),
        ),
        {"out/checkpoint_0": ("accelerate", 4)},
    ),
    "lightning": (
        ("out/epoch=0-step=10.ckpt", "out/epoch=1-step=20.ckpt", "out/hparams.yaml"),
        {"out/epoch=0-step=10.ckpt": ("ckpt", 1), "out/epoch=1-step=20.ckpt": ("ckpt", 1)},
    ),
    "dcp: with its index alone": (
        (
            *("out/step_5/.metadata", "out/step_5/__0_0.distcp", "out/step_5/__1_0.distcp"),
            "out/step_9/__0_0.distcp",
        ),
        {"out/step_5": ("torch-dcp", 3)},
    ),
    "deepspeed": (
        (
            *("out/global_step7/mp_rank_00_model_states.pt", "out/latest"),
            "out/global_step7/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
        ),
        {"out/global_step7": ("deepspeed", 2)},
    ),
    "orbax": (
        (
            *("out/100/_CHECKPOINT_METADATA", "out/100/default/_METADATA"),
            *("out/100/default/d/abc", "out/100/metrics/metrics"),
            "out/200.orbax-checkpoint-tmp-1/default/_METADATA",
        ),
        {"out/100": ("orbax", 4)},
    ),
    "keras": (
        ("out/ckpt-01.keras", "out/ckpt-02.keras"),
        {"out/ckpt-01.keras": ("keras", 1), "out/ckpt-02.keras": ("keras", 1)},
    ),
    "tensorflow's two files": (
        ("out/ckpt-5.index", "out/ckpt-5.data-00000-of-00001", "out/checkpoint"),
        {"out/ckpt-5.data-00000-of-00001": ("data-00000-of-00001", 2)},
    ),
    "xgboost and catboost": (
        ("out/model_0.ubj", "out/model_1.ubj", "out/m.cbm"),
        {
            "out/m.cbm": ("cbm", 1),
            "out/model_0.ubj": ("ubj", 1),
            "out/model_1.ubj": ("ubj", 1),
        },
    ),
    "nanochat: three files and two ranks of one step": (
        (
            *("out/d4/model_000500.pt", "out/d4/meta_000500.json"),
            *("out/d4/optim_000500_rank0.pt", "out/d4/optim_000500_rank1.pt"),
            "out/d4/model_001000.pt",
        ),
        {"out/d4/model_000500.pt": ("pt", 4), "out/d4/model_001000.pt": ("pt", 1)},
    ),
    "best and last beside each other, and an optimizer of one": (
        ("out/best.pt", "out/last.pt", "out/a/model.pt", "out/a/optimizer.pt"),
        {"out/a/model.pt": ("pt", 2), "out/best.pt": ("pt", 1), "out/last.pt": ("pt", 1)},
    ),
    "a gan": (
        ("out/G_100.pth", "out/D_100.pth", "out/G_200.pth", "out/D_200.pth"),
        {"out/D_100.pth": ("pth", 2), "out/D_200.pth": ("pth", 2)},
    ),
    "diffusers: a pipeline is one model, beside its training's checkpoints": (
        (
            *("out/model_index.json", "out/unet/config.json", "out/scheduler/config.json"),
            *("out/unet/diffusion_pytorch_model.safetensors", "out/vae/config.json"),
            "out/vae/diffusion_pytorch_model.safetensors",
            *("out/checkpoint-50/optimizer.bin", "out/checkpoint-50/unet/config.json"),
            "out/checkpoint-50/unet/diffusion_pytorch_model.safetensors",
            "out/logs/text2image/events.out.tfevents.1",
        ),
        {"out": ("diffusers", 6), "out/checkpoint-50": ("folder", 3)},
    ),
    "sentence-transformers: with its modules": (
        (
            *("out/config.json", "out/model.safetensors", "out/modules.json"),
            *("out/1_Pooling/config.json", "out/2_Dense/config.json"),
            "out/2_Dense/model.safetensors",
        ),
        {"out": ("transformers-model", 6)},
    ),
    "spacy": (
        (
            *(f"out/{m}/{n}" for m in ("model-best", "model-last") for n in SPACY),
            *("out/model-best/tagger/model", "out/model-last/tagger/model"),
        ),
        {"out/model-best": ("spacy", 5), "out/model-last": ("spacy", 5)},
    ),
    "in folders that boards use too": (
        (
            *("out/runs/detect/train/weights/best.pt", "out/runs/detect/train/args.yaml"),
            *("out/logs/rl_model_500.pth", "out/logs/evaluations.npz"),
        ),
        {
            "out/logs/rl_model_500.pth": ("pth", 1),
            "out/runs/detect/train/weights/best.pt": ("pt", 1),
        },
    ),
    "step_N without a suffix": (("out/step_5",), {"out/step_5": ("file", 1)}),
    "not yet whole, logs, pictures": (
        ("out/.model.pt", "out/model.pt.tmp", "out/tmp-model.pt", "out/x.log", "out/a.png"),
        {},
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_files_that_belong_together_are_one_checkpoint(tmp_path: Path, layout: str) -> None:
    names, expected = LAYOUTS[layout]
    lay(tmp_path, *names)
    for name in names:
        if (index := INDEXES.get(Path(name).name)) is not None:
            (tmp_path / name).write_text(json.dumps(index))
    assert found(tmp_path) == expected


def test_files_written_long_after_another_are_another_checkpoint(tmp_path: Path) -> None:
    lay(tmp_path, "out/encoder.pt", "out/decoder.pt", "out/optimizer.pt", "out/state-b.pt")
    os.utime(tmp_path / "out/state-b.pt", (1e9, 1e9))
    assert found(tmp_path) == {"out/decoder.pt": ("pt", 3), "out/state-b.pt": ("pt", 1)}


def test_what_a_file_is_shows_in_its_first_bytes(tmp_path: Path) -> None:
    lay(tmp_path, "out/booster.json", content=BOOSTER)
    lay(tmp_path, "out/trees.txt", content=b"tree\nversion=v4\n")
    (tmp_path / "out" / "results.json").write_text('{"loss": 1}')
    (tmp_path / "out" / "notes.txt").write_text("a tree\nversion=v4")
    lay(tmp_path, "out/pickled", content=pickle.dumps([1], protocol=4))
    with zipfile.ZipFile(tmp_path / "out" / "zipped", "w") as archive:
        archive.writestr("archive/data.pkl", b"x" * 400)
    with zipfile.ZipFile(tmp_path / "out" / "run.cleanrl_model", "w") as archive:
        archive.writestr("archive/data.pkl", b"x" * 400)
    with zipfile.ZipFile(tmp_path / "out" / "rl_model_512_steps.zip", "w") as archive:
        archive.writestr("data", b"x" * 400)
        archive.writestr("policy.pth", b"x" * 400)
    for name in ("documents", "report.zip", "report.docx"):
        with zipfile.ZipFile(tmp_path / "out" / name, "w") as archive:
            archive.writestr("text.xml", b"x" * 400)
    looked = find_artifacts(tmp_path, below="out")
    names = {file.path for artifact in looked.artifacts for file in artifact.files}
    assert names == {
        *("booster.json", "trees.txt", "pickled", "zipped"),
        *("run.cleanrl_model", "rl_model_512_steps.zip"),
    }
    assert {file.path for file in looked.rest} == {
        *("out/notes.txt", "out/results.json"),
        *("out/documents", "out/report.zip", "out/report.docx"),
    }


def test_without_a_folder_the_tree_is_searched_but_for_what_was_sent(tmp_path: Path) -> None:
    lay(tmp_path, "pretrained.pt", "data/train.npy", "train.py")
    sent = files_below(tmp_path)
    lay(tmp_path, "data/valid.npy", "predictions.npy", "deep/er/model.pt", "notes.md")
    looked = find_artifacts(tmp_path, but=sent)
    assert [a.source for a in looked.artifacts] == ["deep/er/model.pt"]
    assert {file.path for file in looked.rest} == {"notes.md", "predictions.npy"}
    lay(tmp_path, "pretrained.pt", content=TENSORS + b" ")
    sources = [a.source for a in find_artifacts(tmp_path, but=sent).artifacts]
    assert "pretrained.pt" in sources, "trained further in place"


def test_without_a_folder_a_file_of_torch_needs_no_models_name(tmp_path: Path) -> None:
    for name in ("4.pkl", "predictions.pkl"):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr("archive/data.pkl", b"x" * 400)
    (tmp_path / "5.pkl").write_bytes(pickle.dumps([1], protocol=4))
    (tmp_path / "6.pkl").symlink_to("4.pkl")
    looked = find_artifacts(tmp_path)
    assert [artifact.source for artifact in looked.artifacts] == ["4.pkl"]


@pytest.mark.parametrize(
    ("name", "marks"),
    [
        ("checkpoint-20", NameNumbers(20)),
        ("epoch=1-step=20.ckpt", NameNumbers(20, 1, None, "step")),
        ("epoch3.bin", NameNumbers(None, 3, 3)),
        ("model_000500.pt", NameNumbers(None, None, 500)),
        ("optim_000500_rank1.pt", NameNumbers(None, None, 500)),
        ("model-00001-of-00002.safetensors", NameNumbers()),
        ("iter_0000007", NameNumbers(7, counter="iter")),
        ("unit2.pt", NameNumbers(None, None, 2)),
        ("best.pt", NameNumbers()),
    ],
)
def test_numbers_of_names(name: str, marks: NameNumbers) -> None:
    assert marks_of(name) == marks


def one(root: Path) -> Artifact:
    [artifact] = find_artifacts(root, below="out").artifacts
    return artifact


def test_metrics_of_layouts(tmp_path: Path) -> None:
    lay(tmp_path / "hf", *(f"out/checkpoint-20/{name}" for name in TRAINER))
    history = [{"step": 10, "eval_loss": 3.5}, {"step": 20, "loss": 2.0}, {"eval_loss": 2.5}, 7]
    state = {"global_step": 20, "log_history": history}
    (tmp_path / "hf/out/checkpoint-20/trainer_state.json").write_text(json.dumps(state))
    assert metrics_in(one(tmp_path / "hf"))[:2] == [
        (10, {"step": 10.0, "eval_loss": 3.5}),
        (20, {"step": 20.0, "loss": 2.0}),
    ]
    assert step_in(one(tmp_path / "hf")) == 20
    lay(tmp_path / "ox", "out/30/_CHECKPOINT_METADATA", "out/30/default/d/x")
    lay(tmp_path / "ox", "out/30/metrics/metrics", content=b'{"val_loss": 1.5}')
    [(_, metrics)] = metrics_in(one(tmp_path / "ox"))
    assert metrics == {"val_loss": 1.5}
    assert step_in(one(tmp_path / "ox")) == 30
    lay(tmp_path / "pl", "out/epoch=2-step=9-val_loss=0.34.ckpt")
    assert metrics_in(one(tmp_path / "pl")) == [(9, {"val_loss": 0.34})]
    lay(tmp_path / "sp", *(f"out/model-best/{name}" for name in SPACY))
    told = {"performance": {"tag_acc": 0.75, "tagger_loss": 3.5}}
    (tmp_path / "sp/out/model-best/meta.json").write_text(json.dumps(told))
    assert metrics_in(one(tmp_path / "sp")) == [(None, {"tag_acc": 0.75, "tagger_loss": 3.5})]


@pytest.mark.parametrize("state", [b"[" * 100_000, b"\xff", b'{"log_history": 5}', b"[]", b""])
def test_a_damaged_state_says_nothing(tmp_path: Path, state: bytes) -> None:
    lay(tmp_path, *(f"out/checkpoint-20/{name}" for name in TRAINER))
    (tmp_path / "out/checkpoint-20/trainer_state.json").write_bytes(state)
    assert metrics_in(one(tmp_path)) == []
    assert step_in(one(tmp_path)) == 20


def test_a_group_comes_back_under_its_own_names(tmp_path: Path) -> None:
    lay(tmp_path / "work", "out/model_000500.pt", "out/meta_000500.json", "out/optim_000500.pt")
    shelf = CommandCheckpoints(
        tmp_path / "checkpoints", "r-1", "train", Command(("x",)), lambda: 1e9
    )
    made = present(shelf.take(one(tmp_path / "work"), 500, None))
    assert made.extra["layout"] == "pt"
    back = restore(tmp_path / "checkpoints" / "step-00000500", made, tmp_path / "back")
    assert back == tmp_path / "back" / "model_000500.pt"
    assert len(list((tmp_path / "back").iterdir())) == 3
    assert [f.size_bytes for f in made.weights] == [len(TENSORS)]


def test_places_outside_the_working_tree(tmp_path: Path) -> None:
    work, home = tmp_path / "work", tmp_path / "home"
    work.mkdir()
    lay(home, ".cache/run/model_000500.pt")
    lay(tmp_path, "elsewhere/step_7.pt")
    named = os.pathsep.join(("~/.cache/run", str(tmp_path / "elsewhere")))
    watcher = Watcher(work, named, home=home)
    list(watcher.settled(0.0, 2.0))
    settled = [a for a in watcher.settled(5.0, 2.0) if isinstance(a, Artifact)]
    assert [(a.place, a.source) for a in settled] == [
        ("~/.cache/run", "model_000500.pt"),
        (str(tmp_path / "elsewhere"), "step_7.pt"),
    ]


def test_versions_that_were_gone_before_they_were_taken_are_counted(tmp_path: Path) -> None:
    watcher = Watcher(tmp_path, "out")
    for second in range(4):
        lay(tmp_path, "out/model.pt", content=bytes([second]) * 99)
        os.utime(tmp_path / "out/model.pt", ns=(second, second + 1))
        assert not list(watcher.settled(float(second), 2.0))
    assert watcher.overwritten == 3
    assert watcher.last_overwritten == "out/model.pt"


def test_a_model_that_two_callbacks_saved_is_one_file(tmp_path: Path) -> None:
    """Lightning validates as it stops: its own callback saves beside ours, at the same step."""
    lay(tmp_path, "out/step-20.ckpt", "out/step=20.ckpt", content=b"PK\x03\x04")
    first = tmp_path / "out" / "step=20.ckpt"
    os.utime(first, ns=(1, 1))
    assert found(tmp_path) == {"out/step=20.ckpt": ("ckpt", 1)}
    lay(tmp_path, "out/generator-20.ckpt", content=b"PK\x03\x04")
    assert found(tmp_path) == {"out/generator-20.ckpt": ("ckpt", 2)}, "another model of that step"


@pytest.mark.parametrize(
    ("source", "is_best"),
    [
        *(("weights/best.pt", True), ("model_best.pth.tar", True), ("out/checkpoint-best", True)),
        *(("best_model", True), ("out/BestModel.pt", True), ("bestmodel.h5", True)),
        *(("x-best-epoch=3.ckpt", True), ("best/step_100.pt", True), ("best_model/last.pt", False)),
        *(("weights/last.pt", False), ("bestiary/model.pt", False), ("out/asbestos.pt", False)),
    ],
)
def test_names_by_which_a_script_says_that_it_is_its_best(source: str, is_best: bool) -> None:
    assert names_best(source) is is_best


def test_files_of_a_pattern_that_belong_together_are_one_checkpoint(tmp_path: Path) -> None:
    """As PyTorch's dcgan saves them, in its working folder."""
    lay(tmp_path, "netG_epoch_3.pth", "netD_epoch_3.pth", "netG_epoch_4.pth", "netD_epoch_4.pth")
    lay(tmp_path, "notes.txt", "odd.weights", "one_5.pth")
    found = [a for a in Watcher(tmp_path, "*.pth").settled(1.0, 0.0) if isinstance(a, Artifact)]
    assert {(a.source, tuple(file.path for file in a.files)) for a in found} == {
        ("netD_epoch_3.pth", ("netD_epoch_3.pth", "netG_epoch_3.pth")),
        ("netD_epoch_4.pth", ("netD_epoch_4.pth", "netG_epoch_4.pth")),
        ("one_5.pth", ("one_5.pth",)),
    }
    [odd] = [a for a in Watcher(tmp_path, "odd*").settled(1.0, 0.0) if isinstance(a, Artifact)]
    assert odd.source == "odd.weights", "of no layout, and named"


def test_a_small_file_that_is_overwritten_again_and_again_is_taken_all_the_same(
    tmp_path: Path,
) -> None:
    """As a script's state.msgpack every 2 s: a version never stands still for long."""
    watcher, taken = Watcher(tmp_path, "out"), list[float]()
    for number in range(20):
        now = number / 2
        if number % 4 == 0:
            lay(tmp_path, "out/state.msgpack", content=f"version {number:02d}".encode())
            os.utime(tmp_path / "out" / "state.msgpack", ns=(number + 1, number + 1))
        for found in watcher.settled(now, 2.0):
            assert isinstance(found, Artifact)
            watcher.done(found)
            taken.append(now)
    assert taken == [4.5, 6.5, 8.5], "the third version on, half a second after each write"
    assert watcher.overwritten == 2


def test_a_scripts_own_best_is_not_pruned_for_a_newer_last(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    ticks = iter(range(1, 100))
    shelf = CommandCheckpoints(folder, "r-1", "train", Command(("x",)), lambda: next(ticks) * 1e7)
    for epoch in range(6):
        names = ("last.pt", "best.pt") if epoch == 2 else ("last.pt",)
        for name in names:
            lay(tmp_path / "work", f"out/{name}", content=f"{name} {epoch}".encode())
            seen = present(Watcher(tmp_path / "work", "out").look(f"out/{name}"))
            shelf.take(seen, None, None)
    sources = [shelf.tree_of(made).source for made in shelf.manifests()]
    assert sources == ["out/best.pt", "out/last.pt"]
    best = present(best_of(shelf.manifests()))
    assert best.extra[NAMED_BEST] == "out/best.pt"


# -- Limits of a look, and names of any bytes ----------------------------------------------------


def test_a_checkpoint_beside_25_000_files_is_found(tmp_path: Path) -> None:
    for folder in range(25):
        (tmp_path / f"images/{folder:02}").mkdir(parents=True)
        for number in range(1000):
            os.mknod(tmp_path / f"images/{folder:02}/{number}.png")
    lay(tmp_path, "out/step-1.pt")
    looked = find_artifacts(tmp_path)
    assert [a.source for a in looked.artifacts] == ["out/step-1.pt"]
    assert looked.refused == ()


def test_a_limit_of_a_look_is_told_unless_it_is_of_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trmcloud.pod.job.artifacts.MOST_ENTRIES", 9)
    lay(tmp_path, "out/step-1.pt", *(f"data/{number}" for number in range(20)))
    looked = find_artifacts(tmp_path)
    assert [a.source for a in looked.artifacts] == ["out/step-1.pt"]
    assert looked.refused == ()
    lay(tmp_path, *(f"a/{number}" for number in range(20)))
    ((name, why),) = find_artifacts(tmp_path).refused
    assert name == "the working tree"
    assert why == (
        "there are more than 9 files and folders; not all of it was searched: name the folder "
        "with --checkpoints"
    )
    lay(tmp_path, *(f"whole-step-3/{number}.pt" for number in range(20)))
    refused = dict(find_artifacts(tmp_path, below="whole-step-3").refused)
    assert "more than 9 files" in refused["whole-step-3"], "a part of it is no checkpoint"


def test_checkpoints_in_deep_folders_are_found(tmp_path: Path) -> None:
    lay(tmp_path, "a/b/c/d/e/f/g/h/i/j/step-1.pt", "/".join(["x"] * 40) + "/step-2.pt")
    looked = find_artifacts(tmp_path)
    assert [a.source for a in looked.artifacts] == ["a/b/c/d/e/f/g/h/i/j/step-1.pt"]
    assert "is deeper than 32 folders; not all of it was searched" in looked.refused[0][1]
    lay(tmp_path, "named/" + "y/" * 8 + "model.pt")
    with pytest.raises(ArtifactRefused, match="deeper than 6 folders"):
        artifact_at(tmp_path, "named")


def test_files_whose_names_are_not_utf_8_come_back_as_two(tmp_path: Path) -> None:
    lay(tmp_path / "work", os.fsdecode(b"step-7/\xe9.pt"), os.fsdecode(b"step-7/\xe8.pt"))
    shelf = CommandCheckpoints(
        tmp_path / "checkpoints", "r-1", "train", Command(("x",)), lambda: 1e9
    )
    (artifact,) = find_artifacts(tmp_path / "work").artifacts
    made = present(shelf.take(artifact, 7, None))
    back = restore(tmp_path / "checkpoints" / "step-00000007", made, tmp_path / "back")
    assert sorted(path.name for path in back.iterdir()) == ["%25E8.pt", "%25E9.pt"]


def test_a_name_that_is_not_utf_8_ends_no_look(tmp_path: Path) -> None:
    lay(tmp_path, os.fsdecode(b"data/caf\xe9.jpg"), os.fsdecode(b"o\xff t/caf\xe9.pt"))
    lay(tmp_path, "out/step-1.pt")
    found = {os.fsencode(a.source) for a in find_artifacts(tmp_path).artifacts}
    assert found == {b"o\xff t/caf\xe9.pt", b"out/step-1.pt"}


def test_a_folder_of_speechbrain_is_one_checkpoint_with_its_name(tmp_path: Path) -> None:
    folder = "out/save/CKPT+2026-11-28+12-00-00+00"
    lay(tmp_path, *(f"{folder}/{name}.ckpt" for name in ("model", "optimizer", "counter")))
    lay(tmp_path, f"{folder}/CKPT.yaml", content=b"end-of-epoch: true\n")
    assert found(tmp_path) == {folder: ("speechbrain", 4)}


def test_an_index_comes_with_the_weights_that_it_names(tmp_path: Path) -> None:
    shards = [f"out/model_7-0000{n}-of-00002.safetensors" for n in (1, 2)]
    lay(tmp_path, *shards, "out/model_7.safetensors.index.json")
    assert found(tmp_path) == {shards[0]: ("safetensors", 3)}


def test_a_pickled_state_of_a_search_is_no_model(tmp_path: Path) -> None:
    """Ray Tune writes the state of its search beside the checkpoints, pickled, as .json."""
    state = pickle.dumps({"iterators": [], "n": list(range(400))})
    (tmp_path / "basic-variant-state-2026-12-01_04-46-17.json").write_bytes(state)
    (tmp_path / "model.json").write_text('{"learner":{"attributes":{}}}')
    assert [found.source for found in find_artifacts(tmp_path).artifacts] == ["model.json"]
