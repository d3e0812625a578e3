"""Samsung's TRM on puzzles: against the published code, and on its own.

Tests against it need its checkout (SamsungSAILMontreal/TinyRecursiveModels at e7b6871):
``TRMCLOUD_TRM=PATH``, as ``make trm`` sets it. Both sides compute in float32 on a CPU. Of the
checkout ``models/recursive_reasoning/trm.py``, ``models/losses.py``, ``models/layers.py``,
``models/sparse_embedding.py``, ``models/ema.py`` and ``dataset/build_sudoku_dataset.py``'s shuffle
run, unchanged. ``einops`` is not installed here: its stand-in has the two patterns of
``layers.py``. flash_attn is imported by none of them any more. For the shuffle's file argdantic,
tqdm and huggingface_hub are empty modules, since reading and writing files is not tested; einops
and pydantic are used as they are. ``adam_atan2`` is compiled for GPUs: its rule is written here
once more, from the paper's formula.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from model.data.batch import RowSelection
from model.families.protocol import Sampling
from model.families.trm_puzzle.model import (
    PuzzleSolver,
    build,
    chances,
    halts,
    shuffle,
    stablemax_nats,
)
from model.families.trm_puzzle.plan import Settings
from model.machine.distributed import World
from model.preparing import puzzles
from model.training.optim import AdamAtan2, Average, Optimizer, Rules
from model.training.stepping import make_dummy_batch, warm_up
from trmcloud.core.errors import DataError, UsageError

PEER = os.environ.get("TRMCLOUD_TRM", "")
needs_peer = pytest.mark.skipif(not PEER, reason="opt-in: make trm PEER_PATH=…")

SMALL: dict[str, Any] = {
    "recipe": "x", "family": "trm_puzzle", "phase": "train", "depth": 2, "width": 32,
    "head_dim": 16, "vocab_size": 6, "sequence": 32, "prefix": 3, "h_cycles": 2, "l_cycles": 2,
    "halt_max_steps": 4, "augmentations": 0, "optimizer": "adamw", "dtype": "float32", "batch": 6,
}  # fmt: skip


def settings(**changes: Any) -> Settings:
    made = Settings(**{**SMALL, **changes})
    made.check()
    return made


def solver(seed: int = 1, **changes: Any) -> PuzzleSolver:
    model = build(settings(**changes), torch.device("cpu"))
    model.initialise(seed)
    return model


def targets(rows: int, first: int = 0, side: int = 4) -> Tensor:
    """(rows, 2·C) puzzles with their solutions; those of 9 × 9 may have other solutions, too."""
    if side == 4:
        texts = puzzles.make_documents(side, 7, first, first + rows, held_out=False)
        return torch.tensor([[int(each) for each in text] for text in texts])
    made = []
    for number in range(first, first + rows):
        draws = puzzles.Draws(11, number)
        [grid] = puzzles.solutions([0] * side**2, 1, draws)
        made.append([digit if draws.below(3) == 0 else 0 for digit in grid] + list(grid))
    return torch.tensor(made)


def draws(rows: int, step: int) -> RowSelection:
    return RowSelection(5, step * rows, range(rows), rows)


# -- the published code --------------------------------------------------------------------------


def _rearrange(x: Tensor, pattern: str) -> Tensor:
    """``einops.rearrange`` by the patterns of ``layers.py``."""
    assert pattern in ("B S H D -> B H S D", "B H S D -> B S H D"), pattern
    return x.transpose(1, 2).contiguous()


def _module(name: str, **parts: Any) -> ModuleType:
    made = ModuleType(name)
    made.__spec__ = ModuleSpec(name, None)
    made.__dict__.update(parts)
    return made


class _Parser:
    def command(self, **_: Any) -> Any:
        return lambda function: function


@pytest.fixture
def peer(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    monkeypatch.syspath_prepend(PEER)
    monkeypatch.syspath_prepend(os.path.join(PEER, "dataset"))
    stand_ins = {
        "einops": _module("einops", rearrange=_rearrange),
        "argdantic": _module("argdantic", ArgParser=_Parser),
        "tqdm": _module("tqdm", tqdm=iter),
        "huggingface_hub": _module("huggingface_hub", hf_hub_download=None),
    }
    for name, module in stand_ins.items():
        monkeypatch.setitem(sys.modules, name, module)
    before = set(sys.modules)
    yield SimpleNamespace(
        trm=importlib.import_module("models.recursive_reasoning.trm"),
        losses=importlib.import_module("models.losses"),
        ema=importlib.import_module("models.ema"),
        sudoku=importlib.import_module("dataset.build_sudoku_dataset"),
    )
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("models", "dataset", "common"):
            del sys.modules[name]


def published(peer: SimpleNamespace, ours: PuzzleSolver, rows: int) -> Any:
    """The published model with its loss head and our weights."""
    s = ours.settings
    model = peer.trm.TinyRecursiveReasoningModel_ACTV1(
        {
            "batch_size": rows,
            "seq_len": s.cells,
            "puzzle_emb_ndim": s.width,
            "num_puzzle_identifiers": 1,
            "vocab_size": s.vocab_size,
            "H_cycles": s.h_cycles,
            "L_cycles": s.l_cycles,
            "H_layers": 0,
            "L_layers": s.depth,
            "hidden_size": s.width,
            "expansion": 4,
            "num_heads": s.heads,
            "pos_encodings": "none" if s.mixer == "mlp" else "rope",
            "halt_max_steps": s.halt_max_steps,
            "halt_exploration_prob": s.halt_exploration,
            "forward_dtype": "float32",
            "mlp_t": s.mixer == "mlp",
            "puzzle_emb_len": s.prefix,
        }
    )
    theirs = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    held = {**dict(ours.named_parameters()), **dict(ours.named_buffers())}
    with torch.no_grad():
        for name, other in NAMES.items():
            theirs[other].copy_(held[name])
        for name, other in block_names(s).items():
            theirs[other].copy_(held[name])
    return peer.losses.ACTLossHead(model, "stablemax_cross_entropy")


NAMES = {
    "embedding.weight": "inner.embed_tokens.embedding_weight", "puzzle": "inner.puzzle_emb.weights",
    "head.weight": "inner.lm_head.weight", "halt.weight": "inner.q_head.weight",
    "halt.bias": "inner.q_head.bias", "answer_start": "inner.H_init",
    "latent_start": "inner.L_init",
}  # fmt: skip


def block_names(s: Settings) -> dict[str, str]:
    made = {}
    for at in range(s.depth):
        ours, theirs = f"blocks.{at}", f"inner.L_level.layers.{at}"
        pairs = {"mlp.gate_up": "mlp.gate_up_proj", "mlp.down": "mlp.down_proj"}
        if s.mixer == "mlp":
            pairs |= {"mix.gate_up": "mlp_t.gate_up_proj", "mix.down": "mlp_t.down_proj"}
        else:
            pairs |= {"mix.qkv": "self_attn.qkv_proj", "mix.out": "self_attn.o_proj"}
        for one, other in pairs.items():
            made[f"{ours}.{one}.weight"] = f"{theirs}.{other}.weight"
    return made


def apart(one: Tensor, other: Tensor) -> float:
    """The largest difference, as a share of the largest value."""
    return float((one - other).abs().max() / other.abs().max().clamp_min(1e-12))


@needs_peer
@pytest.mark.parametrize("mixer", ["mlp", "attention"])
@pytest.mark.parametrize("exploration", [0.0, 0.5])
@pytest.mark.parametrize("side", [4, 9])
def test_steps_in_sequence_equal_the_published_ones(
    peer: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    mixer: str,
    exploration: float,
    side: int,
) -> None:
    """Loss, gradients and carry over ten steps, with rows that halt at different times."""
    rows, size = 6, {"sequence": 2 * side**2, "vocab_size": side + 2}
    ours = solver(mixer=mixer, halt_exploration=exploration, **size)
    with torch.no_grad():
        ours.puzzle.normal_(generator=torch.Generator().manual_seed(2))
        ours.halt.weight.normal_(0, 0.5, generator=torch.Generator().manual_seed(3))
        assert ours.halt.bias is not None
        ours.halt.bias.fill_(0.3 if mixer == "mlp" else 1.2)
    theirs = published(peer, ours, rows).train()
    carry, seen, worst, reset = None, set(), 0.0, 0
    rows_of_step = [targets(rows, step * rows, side) for step in range(10)]
    for step, given in enumerate(rows_of_step):
        batch = {
            "inputs": (given[:, : side**2] + 1).int(),
            "labels": (given[:, side**2 :] + 1).int(),
            "puzzle_identifiers": torch.zeros(rows, dtype=torch.int32),
        }
        if carry is None:
            carry = theirs.initial_carry(batch)
        chance = chances(draws(rows, step))
        most = ours.settings.halt_max_steps
        monkeypatch.setattr(torch, "rand_like", lambda x, c=chance: c[:, 0].to(x.dtype))
        drawn = (2 + (chance[:, 1] * (most - 1)).floor()).int()
        monkeypatch.setattr(torch, "randint_like", lambda x, d=drawn, **_: d)
        carry, loss, _, _, _ = theirs(carry=carry, batch=batch, return_keys=[])
        monkeypatch.undo()
        (loss / rows).backward()
        objective = ours.loss(given, given, draws(rows, step))
        objective.loss.backward()
        mean = float(loss.detach()) / rows
        worst = max(worst, abs(float(objective.loss.detach()) - mean) / mean)
        gradients = {name: each.grad for name, each in theirs.model.named_parameters()}
        gradients["inner.puzzle_emb.weights"] = theirs.model.puzzle_emb.local_weights.grad.sum(
            0, keepdim=True
        )
        for name, other in {**NAMES, **block_names(ours.settings)}.items():
            own = dict(ours.named_parameters()).get(name)
            if own is not None:
                assert own.grad is not None
                worst = max(worst, apart(own.grad, gradients[other]))
        kept = ours._carries[0]
        worst = max(worst, apart(kept.answer, carry.inner_carry.z_H))
        worst = max(worst, apart(kept.latent, carry.inner_carry.z_L))
        assert torch.equal(kept.halted, carry.halted)
        assert torch.equal(kept.steps, carry.steps.long())
        assert torch.equal(kept.tokens, carry.current_data["inputs"].long())
        assert torch.equal(kept.labels, carry.current_data["labels"].long())
        if mixer == "attention":
            # Recursion through attention makes rounding a hundred times larger in a few steps:
            # each step is compared from the published carry.
            ours._carries[0] = kept._replace(
                answer=carry.inner_carry.z_H.clone(), latent=carry.inner_carry.z_L.clone()
            )
        seen |= set(kept.steps[kept.halted].tolist())
        reset += int(kept.halted.sum())
        # One plain update of both, so that the next step has other weights.
        with torch.no_grad():
            for name, other in {**NAMES, **block_names(ours.settings)}.items():
                own = dict(ours.named_parameters()).get(name)
                if own is None:
                    continue
                assert own.grad is not None
                own.sub_(own.grad, alpha=0.01)
                into = dict(theirs.model.named_parameters()).get(other)
                into = theirs.model.puzzle_emb.weights if into is None else into
                into.copy_(own)
                own.grad = None
        theirs.zero_grad()
        theirs.model.puzzle_emb.local_weights.grad = None
    print(f"{side} × {side}, {mixer}: {worst:.2e} apart, {reset} rows halted after {sorted(seen)}")
    assert worst <= 1e-4
    assert len(seen) > 1  # some halted before the last step


@needs_peer
def test_shuffles_are_the_published_moves(
    peer: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The published function, given our draws, makes the same puzzle of each."""
    given = targets(4, side=9) + 1
    tokens, labels = given[:, :81], given[:, 81:]
    for number in (1, 2, 700):
        made = shuffle(tokens, labels, torch.full((4,), number))
        for row in range(4):
            place = np.arange(81).reshape(9, 9)
            square = labels[row].view(9, 9).numpy() - 1
            moved = made[1][row].view(9, 9).numpy() - 1
            found = _moves(square, moved)
            assert found is not None
            digits, turned, bands, rows, stacks, columns = found
            answers = iter([digits, bands, *rows, stacks, *columns])
            monkeypatch.setattr(np.random, "permutation", lambda _, a=answers: np.array(next(a)))
            monkeypatch.setattr(np.random, "rand", lambda t=turned: 0.0 if t else 1.0)
            board = tokens[row].view(9, 9).numpy() - 1
            theirs, solution = peer.sudoku.shuffle_sudoku(board, square)
            monkeypatch.undo()
            assert np.array_equal(solution, moved)
            assert np.array_equal(theirs, made[0][row].view(9, 9).numpy() - 1)
            assert sorted(place.flatten()) == list(range(81))


def _moves(before: Any, after: Any) -> Any:
    """The published function's draws that make ``after`` of ``before``: digits, transposition,
    bands, rows within each, stacks, columns within each."""
    orders = puzzles._line_orders(9)
    for turned in (False, True):
        square = before.T if turned else before
        for rows in orders:
            lines = square[rows]
            # The columns follow from the digits' names, which the first column decides.
            for first in range(9):
                names = dict(zip(lines[:, first], after[:, 0], strict=True))
                if len(names) < 9:
                    continue
                named = np.vectorize(names.get)(lines)
                where = {tuple(named[:, at]): at for at in range(9)}
                columns = [where.get(tuple(after[:, at]), -1) for at in range(9)]
                if -1 not in columns:
                    digits = [names[each] for each in range(1, 10)]
                    return digits, turned, *_split(list(rows)), *_split(columns)
    return None


def _split(lines: list[int]) -> tuple[list[int], list[list[int]]]:
    bands = [lines[at] // 3 for at in (0, 3, 6)]
    return bands, [[line % 3 for line in lines[at : at + 3]] for at in (0, 3, 6)]


@needs_peer
def test_average_is_the_published_one_once_it_is_long(peer: SimpleNamespace) -> None:
    """From the same weights on, with the decay that both come to."""
    model, decay = solver(), 0.9
    average = Average(model, decay)
    theirs = peer.ema.EMAHelper(mu=decay)
    theirs.register(model)
    generator = torch.Generator().manual_seed(1)
    for _ in range(5):
        with torch.no_grad():
            for each in model.parameters():
                each.add_(torch.randn(each.shape, generator=generator))
        average.update(1000)
        theirs.update(model)
    for name, piece in average.weights().items():
        torch.testing.assert_close(piece.tensor, theirs.shadow[name], rtol=1e-5, atol=1e-6)


# -- on its own ----------------------------------------------------------------------------------


def test_stablemax_is_the_formula() -> None:
    logits = torch.tensor([[[2.0, -1.0, 0.0]]])
    mass = [3.0, 0.5, 1.0]
    for label in range(3):
        [[nats]] = stablemax_nats(logits, torch.tensor([[label]]))
        assert float(nats) == pytest.approx(-np.log(mass[label] / sum(mass)))


def test_loss_is_the_mean_over_rows_of_its_parts() -> None:
    model, given = solver(), targets(6)
    with torch.no_grad():
        made = model.loss(given, given, draws(6, 0))
    assert float(made.loss) == pytest.approx(
        float(made.parts["answer"] + 0.5 * made.parts["halt"]), rel=1e-6
    )
    # A fresh model believes at −5 that it is right, and is not.
    assert float(made.parts["halt"]) == pytest.approx(np.log1p(np.exp(-5.0)), rel=1e-4)


def test_carry_is_detached_and_gradients_are_of_the_last_cycle() -> None:
    model, given = solver(), targets(6)
    model.loss(given, given, draws(6, 0)).loss.backward()
    kept = model._carries[0]
    assert not kept.answer.requires_grad
    assert not kept.latent.requires_grad
    # One cycle more without gradients leaves as many applications with them.
    for name, each in model.named_parameters():
        assert each.grad is not None, name


def test_a_row_keeps_its_puzzle_until_it_halts() -> None:
    model = solver(halt_exploration=0.0)
    rows = [targets(6, 6 * step) for step in range(6)]
    held, steps = rows[0][:, :16] + 1, torch.zeros(6, dtype=torch.int64)
    for step in range(6):
        fresh = steps == 4
        held = torch.where(fresh.unsqueeze(1), rows[step][:, :16] + 1, held)
        steps = torch.where(fresh, 1, steps + 1)
        model.loss(rows[step], rows[step], draws(6, step))
        kept = model._carries[0]
        assert torch.equal(kept.tokens, held)
        assert torch.equal(kept.steps, steps)
        assert torch.equal(kept.halted, steps == 4)  # a fresh model never believes to be right


@pytest.mark.parametrize(
    ("belief", "steps", "explores", "drawn", "expected"),
    [
        (1.0, 1, False, 0.0, True),  # it believes to be right
        (-1.0, 3, False, 0.0, False),
        (-1.0, 4, False, 0.0, True),  # the last step
        (1.0, 1, True, 0.0, False),  # it must take two steps at least
        (1.0, 2, True, 0.0, True),
        (1.0, 3, True, 0.99, False),  # four
        (-1.0, 4, True, 0.99, True),
    ],
)
def test_halting(belief: float, steps: int, explores: bool, drawn: float, expected: bool) -> None:
    chance = torch.tensor([[0.0 if explores else 1.0, drawn]])
    made = halts(torch.tensor([belief]), torch.tensor([steps]), chance, settings())
    assert made.tolist() == [expected]


def test_chances_do_not_depend_on_how_rows_are_dealt_out() -> None:
    whole = chances(RowSelection(5, 60, range(6), 6))
    parts = [chances(RowSelection(5, 60, range(at, at + 2), 6)) for at in (0, 2, 4)]
    assert torch.equal(torch.cat(parts), whole)
    assert not torch.equal(chances(RowSelection(5, 66, range(6), 6)), whole)


def test_micro_batches_have_carries_of_their_own() -> None:
    """Two halves of a batch are worked on as the whole would be."""
    whole, halves = solver(), solver()
    for step in range(3):
        given = targets(6, 6 * step)
        one = whole.loss(given, given, draws(6, step)).loss.detach()
        other = [
            halves.loss(given[at], given[at], RowSelection(5, step * 6, rows, 6)).loss.detach()
            for at, rows in ((slice(0, 3), range(3)), (slice(3, 6), range(3, 6)))
        ]
        assert float(one) == pytest.approx(float(sum(other)) / 2, rel=1e-5)


@pytest.mark.parametrize(
    "compiled", [False, pytest.param(True, marks=pytest.mark.more)], ids=["eager", "compiled"]
)
def test_passes_before_the_first_step_take_puzzles_and_leave_the_carry(compiled: bool) -> None:
    model, made = solver(augmentations=3), settings(augmentations=3)
    model.loss(targets(6), targets(6), draws(6, 0))
    before = {name: each.clone() for name, each in model.carried().items()}
    if compiled:
        model.compile_parts()
    warm_up(model, model, made, World(0, 1, torch.device("cpu")))
    assert model.head.weight.grad is not None, "a pass was made"
    after = model.carried()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], each) for name, each in before.items())


@pytest.mark.parametrize(("sequence", "vocab_size"), [(32, 6), (162, 11)])
def test_a_row_that_no_data_gave_is_a_puzzle(sequence: int, vocab_size: int) -> None:
    made = settings(sequence=sequence, vocab_size=vocab_size)
    model = build(made, torch.device("cpu"))
    model.initialise(1)
    batch = make_dummy_batch(made, torch.device("cpu"))
    assert batch.ids.shape == (6, sequence)
    assert model.evaluate(*batch).shape == (1, 6, sequence), "else it raises DataError"


def test_carry_is_taken_up_bit_for_bit() -> None:
    kept, taken = solver(), solver()
    for step in range(3):
        given = targets(6, 6 * step)
        kept.loss(given, given, draws(6, step))
    taken.carry_on({name: each.clone() for name, each in kept.carried().items()})
    given = targets(6, 18)
    losses = [each.loss(given, given, draws(6, 3)).loss for each in (kept, taken, solver())]
    assert torch.equal(losses[0], losses[1])
    assert not torch.equal(losses[0], losses[2])


def test_evaluation_takes_all_steps_and_leaves_the_carry() -> None:
    model, given = solver(), targets(5)
    model.loss(given, given, draws(5, 0))
    before = {name: each.clone() for name, each in model.carried().items()}
    nats = model.evaluate(given, given)
    assert nats.shape == (1, 5, 32)
    assert not nats[0, :, :16].any()
    assert torch.equal(model.counted(given), torch.arange(32).expand(5, 32) >= 16)
    logits = model.solve(given[:, :16] + 1)
    right = logits.argmax(-1) == given[:, 16:] + 1
    puzzles_, solved, cells = model.tallied(nats[:, :3], given[:3], draws(3, 0)).tolist()
    assert (puzzles_, solved, cells) == (3, int(right[:3].all(1).sum()), int(right[:3].sum()))
    assert model.scores([4.0, 1.0, 40.0]) == {"exact_accuracy": 0.25, "cell_accuracy": 40 / 64}
    after = model.carried()
    assert all(torch.equal(each, after[name]) for name, each in before.items())


def test_a_row_that_is_no_puzzle_is_refused() -> None:
    model, given = solver(), targets(2)
    given[1, 3] = -1
    with pytest.raises(DataError, match="no puzzle of 16 cells"):
        model.evaluate(given, given)


def test_generation_gives_the_grid() -> None:
    model, [given] = solver(), targets(1)
    sampling = Sampling(100, 0.0, 0, 1.0, 0, 6, 5)
    start = [5, *given[:16].tolist()]
    made = list(model.generate(start, sampling))
    assert made == (model.solve(given[None, :16] + 1).argmax(-1)[0] - 1).clamp_min(0).tolist()
    assert (model.least_given, model.most_given) == (17, 17)
    with pytest.raises(DataError, match="3 characters; a puzzle has 16"):
        list(model.generate([5, 1, 2, 3], sampling))


# -- shuffles ------------------------------------------------------------------------------------


def test_shuffles_keep_a_sudoku_and_are_fixed() -> None:
    given = targets(8, side=9) + 1
    tokens, labels = given[:, :81], given[:, 81:]
    number = torch.arange(8)
    shuffled, solved = shuffle(tokens, labels, number)
    again = shuffle(tokens, labels, number)
    assert torch.equal(shuffled, again[0])
    assert torch.equal(solved, again[1])
    assert torch.equal(shuffled[0], tokens[0])  # the puzzle itself
    assert not torch.equal(shuffled[1], tokens[1])
    for puzzle, solution, before in zip(shuffled, solved, labels, strict=True):
        grid = (solution - 1).tolist()
        assert puzzles.solutions(grid, 2) == [tuple(grid)]
        given_cells = puzzle > 1
        assert torch.equal(puzzle[given_cells], solution[given_cells])
        assert puzzles.canonical(grid) == puzzles.canonical((before - 1).tolist())


def test_shuffles_move_everything_they_may() -> None:
    """Over many shuffles of one puzzle, each cell and each digit comes to each place."""
    tokens = torch.arange(2, 11).repeat(9).view(1, 81).expand(2000, 81)
    labels = torch.arange(81).view(1, 81).expand(2000, 81) % 9 + 2
    moved, _ = shuffle(tokens, labels, torch.arange(2000))
    share = (moved[1:, :, None] == torch.arange(2, 11)).double().mean(dim=(0,))
    assert share.min() > 0.08
    assert share.max() < 0.15


# -- settings, optimizer, training ----------------------------------------------------------------


@pytest.mark.parametrize("mixer", ["mlp", "attention"])
def test_plan_counts_the_parameters_and_flops(mixer: str) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    model = solver(mixer=mixer)
    work = model.settings.work()
    assert sum(each.numel() for each in model.parameters()) == work.parameters
    given = targets(6)
    with FlopCounterMode(display=False) as counter:
        model.loss(given, given, draws(6, 0)).loss.backward()
    counted = counter.get_total_flops() / (6 * 32)
    assert work.train_flops == pytest.approx(counted, rel=0.05)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sequence": 50}, "no sudoku"),
        ({"vocab_size": 11}, "vocab_size must be 6"),
        ({"rows": "stream"}, "rows=bestfit"),
        ({"optimizer": "muon"}, "optimizer=adamw"),
        ({"dtype": "float8"}, "dtype=bfloat16"),
        ({"halt_exploration": 1.5}, "from 0 to 1"),
        ({"mixer": "mamba"}, "mlp, attention"),
    ],
)
def test_settings_that_cannot_be(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        settings(**changes)
    assert said in f"{caught.value} {caught.value.next_step}"


def test_atan2_moves_by_the_angle() -> None:
    """By hand for two steps: w ← (1 − rate·decay)·w − rate·atan2(m̂, √v̂)."""
    weight = torch.nn.Parameter(torch.tensor([1.0, -2.0, 3.0]))
    rule = AdamAtan2([{"params": [weight], "lr": 0.1, "betas": (0.9, 0.95), "weight_decay": 0.5}])
    expected, mean, square = weight.detach().clone(), torch.zeros(3), torch.zeros(3)
    for step, gradient in enumerate(([1.0, 1e-12, -3.0], [2.0, 1e-12, 0.0]), start=1):
        weight.grad = torch.tensor(gradient)
        rule.step()
        mean = 0.9 * mean + 0.1 * weight.grad
        square = 0.95 * square + 0.05 * weight.grad**2
        angle = torch.atan2(mean / (1 - 0.9**step), (square / (1 - 0.95**step)).sqrt())
        expected = (1 - 0.1 * 0.5) * expected - 0.1 * angle
        torch.testing.assert_close(weight.detach(), expected)
    # However small a gradient is, its first step is π/4 of the rate.
    assert rule.state[weight]["exp_avg"].shape == (3,)


def test_optimizer_state_is_taken_up(tmp_path: Any) -> None:
    def stepped(model: PuzzleSolver, optimizer: Optimizer, step: int) -> None:
        given = targets(6, 6 * step)
        model.loss(given, given, draws(6, step)).loss.backward()
        optimizer.step(step, 1.0)
        optimizer.zero_grad()

    one, other = solver(), solver()
    rules = Rules.of(one.settings)
    assert rules.update_rules == "atan2"
    first, second = Optimizer(one, rules), Optimizer(other, rules)
    for step in range(2):
        stepped(one, first, step)
    other.load_state_dict(one.state_dict())
    other.carry_on(one.carried())
    second.load_state({name: each.clone() for name, each in first.state().items()})
    stepped(one, first, 2)
    stepped(other, second, 2)
    for name, each in one.state_dict().items():
        assert torch.equal(each, other.state_dict()[name]), name


def test_every_weight_decays() -> None:
    model = solver()
    rules = Rules.of(settings(weight_decay=1.0))
    assert {rules.adam(group).decay for group in model.parameter_groups().values()} == {1.0}
