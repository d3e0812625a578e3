"""Drawing of texts from a model: token by token, one text or many at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from model.families.cache import Cache, RowCache
from model.families.protocol import LanguageModel, Sampling

# Drawing a text from a model that gives the logits of the next token.


@runtime_checkable
class NextTokenModel(Protocol):
    """A model that is asked token by token."""

    @property
    def sequence(self) -> int: ...

    def decode(self, ids: Tensor, cache: Cache) -> Tensor:
        """Logits (B, V) for what follows the last of ``ids`` (B, new), ``cache`` holding the
        tokens before them, and taking these up."""
        ...


def generate(
    model: NextTokenModel, start: Sequence[int], sampling: Sampling, device: torch.device
) -> Iterator[int]:
    """Generate the text of ``model`` after ``start``, until it ends the text or ``max_tokens`` are
    drawn."""
    sequence = model.sequence
    generator = torch.Generator(device).manual_seed(sampling.seed)
    context = list(start[-sequence:])
    fresh = context
    cache = Cache(sequence)
    for _ in range(sampling.max_tokens):
        logits = model.decode(torch.tensor([fresh], device=device), cache)[0]
        logits[sampling.known_ids :] = -torch.inf
        token = choose(logits, sampling, generator)
        if token == sampling.stop:
            return
        yield token
        context.append(token)
        fresh = [token]
        if len(context) > sequence:
            # Positions beyond the trained sequence mean nothing to the model: go on from the
            # later half of what there is.
            context = context[-max(1, sequence // 2) :]
            fresh, cache = context, Cache(sequence)


_LEAST_TEMPERATURE = 1e-6
"""Below it the likeliest is taken: logits of about 10 lie as far apart as float32 can tell, and
dividing by much less gives infinity."""


def choose(logits: Tensor, sampling: Sampling, generator: torch.Generator) -> int:
    """One id by its logits (V,)."""
    if sampling.temperature < _LEAST_TEMPERATURE:
        return int(logits.argmax())
    if 0 < sampling.top_k < len(logits):
        least = logits.topk(sampling.top_k).values[-1]
        logits = logits.masked_fill(logits < least, float("-inf"))
    weights = (logits / sampling.temperature).softmax(dim=-1)
    if sampling.top_p < 1.0:
        weights = _nucleus(weights, sampling.top_p)
    return int(weights.multinomial(1, generator=generator))


def _nucleus(weights: Tensor, share: float) -> Tensor:
    """Only the likeliest, as few as come to ``share`` (Holtzman et al. 2020); always one at least.
    What is left is not brought back to a sum of 1."""
    ordered, places = weights.sort(descending=True)
    before = ordered.cumsum(dim=-1) - ordered
    kept = before < share
    kept[0] = True  # a share that float32 holds for 0
    return torch.zeros_like(weights).scatter(0, places, ordered * kept)


# Drawing several texts at a time; each comes out as it would alone.
#
# A model that is asked token by token takes one step of all its texts in one pass. Any other has
# its texts go on in turns.


@dataclass(eq=False)
class Text:
    """One that is being drawn. ``ended``: nothing follows any more."""

    sampling: Sampling
    context: list[int]
    """The ids that the model continues."""
    drawn: int = 0
    ended: bool = False
    failed: Exception | None = None
    """Why it ended before its time: an error of its own, which is no other text's."""

    def fail(self, error: Exception) -> None:
        self.ended, self.failed = True, error


class TextSampler(Protocol):
    """Texts that are drawn at the same time, by one thread."""

    def add(self, start: Sequence[int], sampling: Sampling) -> Text:
        """A text more; nothing is computed yet."""
        ...

    def step(self) -> list[tuple[Text, int]]:
        """At most one id more for each text that has not ended; one that ends, or fails, leaves."""
        ...

    def remove(self, text: Text) -> None:
        """A text that no request waits for any more, whether it is there or not."""
        ...

    def clear(self) -> None:
        """Forgets every text, and whatever a step that failed may have left."""
        ...


def make_sampler(
    model: LanguageModel,
    rows: int,
    device: torch.device,
    report: Callable[[Exception], None] | None = None,
) -> TextSampler:
    """Return the drawing of up to ``rows`` texts from ``model``. ``report`` is called with the
    error of a pass of several texts, after which each may continue alone. ``report`` is given what
    a pass of several texts failed by, though each may go on alone."""
    if isinstance(model, NextTokenModel):
        return BatchedSampler(model, rows, device, report)
    return SequentialSampler(model)


def is_batched(model: LanguageModel) -> bool:
    """Whether its texts go through one pass together."""
    return isinstance(model, NextTokenModel)


@dataclass(eq=False)
class _Row(Text):
    generator: torch.Generator = field(default_factory=torch.Generator)


class BatchedSampler:
    """One pass a step for all texts. A text's beginning goes through the model alone, so that it
    waits for nobody's padding; its generator is its own."""

    def __init__(
        self,
        model: NextTokenModel,
        rows: int,
        device: torch.device,
        report: Callable[[Exception], None] | None = None,
    ) -> None:
        self._model, self._rows, self._device = model, rows, device
        self._report, self._reported = report, ""
        self._cache = RowCache(rows, model.sequence)
        self._fresh: list[_Row] = []
        self._going: list[_Row] = []
        """In the order of the cache's rows."""

    def add(self, start: Sequence[int], sampling: Sampling) -> Text:
        generator = torch.Generator(self._device).manual_seed(sampling.seed)
        row = _Row(sampling, list(start[-self._model.sequence :]), generator=generator)
        self._fresh.append(row)
        return row

    def step(self) -> list[tuple[Text, int]]:
        made: list[tuple[Text, int]] = []
        going, fresh, self._fresh = list(self._going), self._fresh, []
        logits = self._passed(going)
        if logits is None:  # whose fault it was shows when each begins anew, alone
            self.clear()
            going, fresh, logits = [], [*going, *fresh], ()
        for row, of in zip(going, logits, strict=True):
            self._take(row, of, made)
        for row in fresh:
            try:
                alone = self._begin(row)
            except Exception as error:  # the others are not to pay for it
                row.fail(error)
            else:
                self._take(row, alone, made)
        return made

    def _passed(self, going: Sequence[_Row]) -> Sequence[Tensor] | None:
        """The logits of each, of one pass; None where that failed."""
        if not going:
            return ()
        last = torch.tensor([[row.context[-1]] for row in going], device=self._device)
        try:
            return list(self._model.decode(last, self._cache))
        except Exception as error:
            if self._report is not None and repr(error) != self._reported:
                self._reported = repr(error)  # once, where every pass fails
                self._report(error)
            return None

    def _begin(self, row: _Row) -> Tensor:
        """A text's beginning, alone; it then stands behind the others."""
        alone = Cache(len(row.context))
        ids = torch.tensor([row.context], device=self._device)
        [logits] = self._model.decode(ids, alone)
        self._cache.append(alone)
        self._going.append(row)
        return logits

    def _take(self, row: _Row, logits: Tensor, made: list[tuple[Text, int]]) -> None:
        """Draws the row's next id from its logits."""
        try:
            token = self._drawn(row, logits)
        except Exception as error:
            self.remove(row)
            row.fail(error)
        else:
            if token is not None:
                made.append((row, token))

    def remove(self, text: Text) -> None:
        if text in self._fresh:
            self._fresh.remove(text)
        elif text in self._going:
            row = self._going.index(text)
            self._cache.remove(row)
            self._going[row] = self._going[-1]
            self._going.pop()

    def clear(self) -> None:
        self._cache = RowCache(self._rows, self._model.sequence)
        self._fresh, self._going = [], []

    def _drawn(self, row: _Row, logits: Tensor) -> int | None:
        sampling, sequence = row.sampling, self._model.sequence
        logits[sampling.known_ids :] = -torch.inf
        token = choose(logits, sampling, row.generator)
        row.drawn += 1
        stopped = token == sampling.stop
        row.ended = stopped or row.drawn >= sampling.max_tokens
        if row.ended:
            self.remove(row)
            return None if stopped else token
        row.context.append(token)
        if len(row.context) > sequence:
            # As ``decoding.generate`` does: on from the later half, anew.
            self.remove(row)
            row.context = row.context[-max(1, sequence // 2) :]
            self._fresh.append(row)
        return token


class SequentialSampler:
    """One id of each text after the other, as the family's own ``generate`` gives it."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self._texts: dict[Text, Iterator[int]] = {}

    def add(self, start: Sequence[int], sampling: Sampling) -> Text:
        text = Text(sampling, list(start))
        self._texts[text] = iter(self._model.generate(start, sampling))
        return text

    def step(self) -> list[tuple[Text, int]]:
        made = []
        for text, ids in list(self._texts.items()):
            try:
                token = next(ids, None)
            except Exception as error:  # the others are not to pay for it
                self.remove(text)
                text.fail(error)
                continue
            text.ended = token is None or text.drawn + 1 >= text.sampling.max_tokens
            if token is not None:
                text.drawn += 1
                made.append((text, token))
            if text.ended:
                self.remove(text)
        return made

    def remove(self, text: Text) -> None:
        self._texts.pop(text, None)

    def clear(self) -> None:
        self._texts = {}
