"""Plan and execution by diffusion, against their definitions: who sees whom, the bound, the end."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from model.data.batch import Draws
from model.data.packing import GIVEN, PAD
from model.families import masked_diffusion
from model.families.attention import attend
from model.families.cache import Cache
from model.families.dense import Shape
from model.families.drawing import drawing
from model.families.hdp.model import PlanDiffusion
from model.families.masked_diffusion import WHOLE, Places, Span
from model.families.protocol import Sampling
from trmcloud.core.errors import DataError, UsageError

SEGMENTS = (4, 6, 8)
QUESTION, PLAN, EXECUTION = SEGMENTS
SHAPE = Shape(vocab_size=11, depth=2, width=32, head_dim=16, sequence=18, mlp="gelu")
MASK, END = 10, 0


def make(
    shape: Shape = SHAPE, segments: tuple[int, int, int] = SEGMENTS, std: float = 0.2
) -> PlanDiffusion:
    """With weights that say something everywhere."""
    model = PlanDiffusion(shape, segments)
    model.initialise(3)
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data.add_(torch.randn(parameter.shape, generator=generator) * std)
    return model


def row(*parts: list[int], segments: tuple[int, int, int] = SEGMENTS) -> Tensor:
    """The targets of one text."""
    made = []
    for number, (part, length) in enumerate(zip(parts, segments, strict=True)):
        ids = [*part, END]
        ids = [GIVEN - each for each in ids] if number == 0 else ids
        made += ids + [PAD] * (length - len(ids))
    return torch.tensor([made])


def rows(number: int, seed: int = 1) -> Tensor:
    """Texts of every length."""
    chosen = torch.Generator().manual_seed(seed)

    def part(length: int) -> list[int]:
        size = int(torch.randint(length, (), generator=chosen))
        return torch.randint(1, MASK, (size,), generator=chosen).tolist()

    return torch.cat([row(*map(part, SEGMENTS)) for _ in range(number)])


# -- who sees whom -----------------------------------------------------------------------------


def mask_by_hand(segments: tuple[int, int, int]) -> Tensor:
    """[noisy plan ; noisy execution ; clean question ; clean plan], rectangle by rectangle."""
    q, p, e = segments
    noisy_plan, noisy_execution = slice(0, p), slice(p, p + e)
    question, plan = slice(p + e, p + e + q), slice(p + e + q, p + e + q + p)
    seen = torch.zeros(e + q + 2 * p, e + q + 2 * p, dtype=torch.bool)
    for query, keys in (
        (noisy_plan, (noisy_plan, question)),
        (noisy_execution, (noisy_execution, question, plan)),
        (question, (question,)),
        (plan, (plan, question)),
    ):
        for key in keys:
            seen[query, key] = True
    return seen


def places_of(segments: tuple[int, int, int]) -> Places:
    model = PlanDiffusion(replace(SHAPE, sequence=sum(segments)), segments)
    return Places(model.seen_of, sum(segments[1:]))


@pytest.mark.parametrize("question", [1, 2, 7, 16])
def test_the_mask_is_the_definition_for_every_plan_and_execution(question: int) -> None:
    for plan, execution in product(range(1, 25), (1, 3, 16, 23)):
        segments = (question, plan, execution)
        seen = masked_diffusion.table(places_of(segments))
        assert torch.equal(seen, mask_by_hand(segments)), segments


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("segments", [(16, 16, 32), (5, 7, 20)])
def test_flex_attention_mixes_what_sdpa_does(segments: tuple[int, int, int]) -> None:
    places = places_of(segments)
    generator = torch.Generator().manual_seed(1)
    size = len(places.block_of)
    q, k, v = (torch.randn(2, 2, size, 16, generator=generator) for _ in range(3))
    rule: dict[str, Any] = {"causal": False, "dropout": 0.0}
    by_table = attend(q, k, v, masked_diffusion.table(places), **rule)
    by_tiles = attend(q, k, v, masked_diffusion.tiles(places), **rule)
    torch.testing.assert_close(by_tiles, by_table, rtol=0, atol=1e-5)


@torch.no_grad()
def test_an_execution_never_changes_a_plans_logits_to_the_last_bit() -> None:
    model = make()
    clean, _ = model._filled(rows(3))
    noisy = clean[:, QUESTION:].clone()
    noisy[:, 1::2] = MASK
    before = model._logits(model._noisy_states(noisy, clean))
    plan, execution = before[:, :PLAN], before[:, PLAN:]
    for place, token in product(range(EXECUTION), (MASK, END, 5)):
        changed, behind = noisy.clone(), clean.clone()
        changed[:, PLAN + place] = token
        behind[:, QUESTION + PLAN + place] = min(token, 9)
        after = model._logits(model._noisy_states(changed, behind))
        assert torch.equal(after[:, :PLAN], plan)
        if not torch.equal(changed, noisy):
            assert not torch.equal(after[:, PLAN:], execution), "and the execution's it does"
    # The other way about: an execution sees the plan that is clean, and no noisy one.
    changed = noisy.clone()
    changed[:, 0] = 7
    assert torch.equal(model._logits(model._noisy_states(changed, clean))[:, PLAN:], execution)
    behind = clean.clone()
    behind[:, QUESTION] = 7
    assert not torch.equal(model._logits(model._noisy_states(noisy, behind))[:, PLAN:], execution)


@torch.no_grad()
def test_a_plans_bound_is_the_same_whatever_is_executed() -> None:
    model, draws = make(), Draws.alone(1)
    one = row([1, 2], [3, 4, 5], [6, 7])
    other = row([1, 2], [3, 4, 5], [9, 8, 7, 6, 5])
    plan = slice(QUESTION, QUESTION + PLAN)
    made = [model.evaluate(x, x, draws)[0] for x in (one, other)]
    assert torch.equal(made[0][:, plan], made[1][:, plan])
    assert made[0][:, plan].any()
    assert not torch.equal(made[0], made[1])


# -- the bound ---------------------------------------------------------------------------------


def bound_by_enumeration(model: PlanDiffusion, parts: list[list[int]]) -> float:
    """Σ over both segments and sets M of drawn places of ∫ t^(m−1)·(1−t)^(L−m) dt · Σ of −ln p over
    those of M behind no visible end, with all that is behind one shown."""
    question, *lengths = model.segments
    filled = [part + [END] * (n - len(part)) for part, n in zip(parts, model.segments, strict=True)]
    clean = torch.tensor([[id for part in filled for id in part]])
    total, start = 0.0, 0
    for number, length in enumerate(lengths, start=1):
        for drawn in product((False, True), repeat=length):
            seen_ends = [at for at in range(length) if not drawn[at] and at >= len(parts[number])]
            places = [
                start + at
                for at in range(length)
                if drawn[at] and not any(end <= at for end in seen_ends)
            ]
            if not places:
                continue
            noisy = clean[:, question:].clone()
            noisy[0, places] = model.mask_id
            states = model._noisy_states(noisy, clean)[0, places]
            rows = model.embedding.weight if model.head is None else model.head.weight
            logits = torch.nn.functional.linear(model.norm(states), rows)
            logits[:, model.mask_id] = -torch.inf
            answers = clean[0, [question + place for place in places]]
            nats = -logits.log_softmax(-1)[range(len(places)), answers].sum()
            m = sum(drawn)
            beta = math.gamma(m) * math.gamma(length - m + 1) / math.gamma(length + 1)
            total += beta * float(nats)
        start += length
    return total


@torch.no_grad()
@pytest.mark.parametrize(
    "parts", [[[3], [1, 2], [2, 1]], [[], [2], []], [[1], [], [3]]], ids=["full", "short", "empty"]
)
def test_the_bound_is_what_enumeration_gives(
    monkeypatch: pytest.MonkeyPatch, parts: list[list[int]]
) -> None:
    segments = (2, 3, 3)
    shape = Shape(vocab_size=5, depth=1, width=8, head_dim=8, sequence=8, mlp="gelu")
    model = make(shape, segments, std=0.5)
    exact = bound_by_enumeration(model, parts)
    # Of the same law, drawn at once: a weight of 1/t takes many rows to come to its mean.
    generator = torch.Generator().manual_seed(5)
    monkeypatch.setattr(
        masked_diffusion,
        "thresholds",
        lambda draws, n: torch.rand(draws.of, n, generator=generator),
    )
    number, drawn = 50_000, 0.0
    targets = row(*parts, segments=segments).expand(number, -1)
    for group in range(4):
        draws = Draws(0, group, range(number), number)
        drawn += float(model.evaluate(targets, targets, draws).sum())
    assert drawn / (4 * number) == pytest.approx(exact, rel=0.01)
    assert exact > 0


def test_what_an_end_costs_stands_at_the_last_token_before_it() -> None:
    model, draws = make(), Draws(4, 0, range(40), 40)
    x = row([1, 2], [3, 4], [5]).expand(40, -1)
    nats = model.evaluate(x, x, draws)[0]
    text = [QUESTION, QUESTION + 1, QUESTION + PLAN]
    others = [each for each in range(SHAPE.sequence) if each not in text]
    assert (nats[:, others] == 0).all()
    assert (nats[:, text].sum(dim=0) > 0).all()
    # The last token is visible here and there, and still its end costs.
    at = masked_diffusion.times(draws, 2, WHOLE)[:, model.block_of]
    visible = masked_diffusion.thresholds(draws, PLAN + EXECUTION) >= at
    assert (nats[visible[:, 1] & ~visible[:, 2], QUESTION + 1] > 0).all()


def test_behind_a_visible_end_nothing_is_hidden_and_nothing_costs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = make()
    asked: list[Tensor] = []
    states = model._noisy_states

    def noted(noisy: Tensor, clean: Tensor) -> Tensor:
        asked.append(noisy)
        return states(noisy, clean)

    monkeypatch.setattr(model, "_noisy_states", noted)
    x, draws = rows(200), Draws(0, 7, range(200), 200)
    model.evaluate(x, x, draws)
    [noisy] = asked
    assert (noisy == MASK).any()
    for segment in noisy.split(SEGMENTS[1:], dim=1):
        ended = (segment == END).long().cummax(dim=1).values.bool()
        assert (segment[ended] == END).all()
        assert ended.any()


def test_a_loss_is_the_mean_over_tokens_and_ends_and_its_parts_make_it_up() -> None:
    model, x = make(), torch.cat([row([1], [2, 3], [4, 5, 6]), row([], [], [7])])
    draws = Draws(1, 2, range(2), 2)
    nats = model.evaluate(x, x, draws)[0]
    made = model.loss(x, x, draws)
    assert made.loss.item() == pytest.approx(float(nats.sum()) / (3 + 4 + 1 + 2), rel=1e-6)
    plan, execution = (made.parts[name].item() for name in ("plan", "execution"))
    assert plan + execution == pytest.approx(made.loss.item())
    assert plan == pytest.approx(float(nats[:, 4:10].sum()) / 10, rel=1e-6)


def test_times_are_one_for_the_plan_and_one_for_the_execution() -> None:
    model, number = make(), 300
    x = row([1], [2, 3, 4, 5], [6, 7, 8, 9, 1, 2]).expand(number, -1)
    draws = Draws(0, 0, range(number), number)
    nats = model.evaluate(x, x, draws)
    tallied = model.tallied(nats, x, draws).view(3, -1)
    assert int(tallied[0, masked_diffusion.SPANS.index(Span(1e-3, 1.0))]) == 2 * number
    sums = float(nats[0, :, 4:10].sum() / 5 + nats[0, :, 10:].sum() / 7)
    assert float(tallied[1, 0]) == pytest.approx(sums, rel=1e-5)
    model.adapt(tallied.flatten().tolist())
    assert model.diagnostics([])["mask_to"] == model.span.high


# -- texts -------------------------------------------------------------------------------------


def sampling(**changes: Any) -> Sampling:
    base = Sampling(
        max_tokens=50, temperature=0.0, top_k=0, top_p=1.0, seed=0, known_ids=10, stop=END
    )
    return replace(base, **changes)


def worked(first: int) -> tuple[list[int], list[int], list[int]]:
    """A question, the plan that follows from it, and what that comes to."""
    return [first, 1], [first % 9 + 1] * (first % 4 + 1), [(first + 3) % 9 + 1, 9, 9, 2]


@pytest.fixture(scope="module")
def learnt() -> PlanDiffusion:
    model, steps = make(std=0.0), 300
    adam = torch.optim.Adam(model.parameters(), 5e-3)
    rate = torch.optim.lr_scheduler.LinearLR(adam, 1.0, 0.05, steps)
    x = torch.cat([row(*worked(each % 9 + 1)) for each in range(18)])
    for step in range(steps):
        model.loss(x, x, Draws(0, step, range(18), 18)).loss.backward()
        adam.step()
        rate.step()
        adam.zero_grad()
    return model


def test_a_question_gets_its_plan_an_end_and_its_execution(learnt: PlanDiffusion) -> None:
    right = 0
    for first in range(1, 10):
        question, plan, execution = worked(first)
        made = list(learnt.generate([END, *question], sampling()))
        assert made.count(END) == 1
        right += made == [*plan, END, *execution]
        assert list(learnt.generate([END, *question], sampling(max_tokens=4))) == made[:4]
    assert right >= 8


def test_an_execution_is_drawn_to_the_plan_that_was(
    learnt: PlanDiffusion, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[list[int]] = []
    real = PlanDiffusion.denoise

    def denoise(self: PlanDiffusion, ids: Tensor, cache: Cache, *, keep: bool) -> Tensor:
        if keep:
            kept.append(ids[0].tolist())
        return real(self, ids, cache, keep=keep)

    monkeypatch.setattr(PlanDiffusion, "denoise", denoise)
    made = list(learnt.generate([END, 4, 1], sampling(temperature=1.0, seed=3)))
    question, plan = kept
    assert question == [4, 1, END, END]
    said = made[: made.index(END)]
    assert plan == said + [END] * (PLAN - len(said))


def test_segments_that_are_kept_give_the_logits_of_one_pass() -> None:
    model = make()
    clean, _ = model._filled(row([1, 2], [3, 4, 5], [6, 7, 8, 9]))
    noisy = clean[:, QUESTION:].clone()
    noisy[0, [1, 2, 8, 9]] = MASK
    with torch.no_grad():
        plan, execution = model._logits(model._noisy_states(noisy, clean)).split(
            SEGMENTS[1:], dim=1
        )
    cache = Cache(SHAPE.sequence)
    model.denoise(clean[:, :QUESTION], cache, keep=True)
    made = model.denoise(noisy[:, :PLAN], cache, keep=False)
    torch.testing.assert_close(made, plan, rtol=1e-4, atol=1e-5)
    model.denoise(clean[:, QUESTION : QUESTION + PLAN], cache, keep=True)
    made = model.denoise(noisy[:, PLAN:], cache, keep=False)
    torch.testing.assert_close(made, execution, rtol=1e-4, atol=1e-5)


def test_texts_that_are_drawn_in_turns_come_out_as_alone(learnt: PlanDiffusion) -> None:
    together = drawing(learnt, 4, torch.device("cpu"))
    texts = [together.add([END, first, 1], sampling(seed=first)) for first in (3, 8)]
    said: dict[Any, list[int]] = {text: [] for text in texts}
    while not all(text.ended for text in texts):
        for text, token in together.step():
            said[text].append(token)
    assert list(said.values()) == [
        list(learnt.generate([END, first, 1], sampling(seed=first))) for first in (3, 8)
    ]


def test_a_question_that_its_segment_has_no_room_for_is_refused() -> None:
    model = make()
    assert model.most_given == 4
    assert list(model.generate([END, 1, 2, 3], sampling(max_tokens=1)))
    with pytest.raises(DataError, match="the prompt has 4 tokens, and a question has room for 3"):
        list(model.generate([END, 1, 2, 3, 4], sampling()))


def test_segments_that_do_not_make_up_the_sequence_are_refused() -> None:
    with pytest.raises(UsageError, match="segments of 4, 6, 9 do not make up a sequence of 18"):
        PlanDiffusion(SHAPE, (4, 6, 9))
