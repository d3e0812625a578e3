"""One thread that owns the model, and the requests that wait for it or go through it.

A request that comes while others are drawn joins them at the next step; one whose client has gone
leaves before it.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Callable, Sequence

from model.families.drawing import Text, TextSampler
from model.families.protocol import Sampling
from trmcloud.core.text import one_line


@dataclass(frozen=True)
class EndOfText:
    """After a request's last id. ``why``: ``stop`` (the model ended the text), ``length`` (as many
    as were asked for), or ``failed``."""

    why: str


Deliver = Callable[[int | EndOfText], None]
"""Called by the engine's thread with every id, and at last with an ``End``."""


class QueueFull(Exception):
    """As many requests wait as may."""


@dataclass(eq=False)
class GenerationRequest:
    """A request, from when it was taken in until its ``End`` or its being given up."""

    start: Sequence[int]
    sampling: Sampling
    deliver: Deliver
    given_up: bool = False
    text: Text | None = field(default=None, repr=False)


class Engine:
    """Draws up to ``rows`` requests at a time, and lets ``waiting`` more wait."""

    def __init__(
        self,
        drawing: TextSampler,
        *,
        rows: int,
        waiting: int,
        report: Callable[[str], None],
    ) -> None:
        """``report`` is called with a line about a step that failed."""
        self._drawing, self._rows, self._most = drawing, rows, waiting
        self._report = report
        self._changed = threading.Condition()
        self._waiting: deque[GenerationRequest] = deque()
        self._going: list[GenerationRequest] = []
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Takes nothing more, and waits for the step that is under way."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    @property
    def counts(self) -> tuple[int, int]:
        """(requests that are drawn, requests that wait)."""
        with self._changed:
            return len(self._going), len(self._waiting)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def submit(
        self, start: Sequence[int], sampling: Sampling, deliver: Deliver
    ) -> GenerationRequest:
        """
        Raises:
            Full: try again later.
        """
        ticket = GenerationRequest(start, sampling, deliver)
        with self._changed:
            free = self._rows - len(self._going)
            if self._closed or len(self._waiting) >= self._most + max(0, free):
                raise QueueFull
            self._waiting.append(ticket)
            self._changed.notify()
        return ticket

    def give_up(self, ticket: GenerationRequest) -> None:
        """The request is given up; nothing is delivered from the next step on."""
        with self._changed:
            ticket.given_up = True
            self._changed.notify()

    def _work(self) -> None:
        while self._take_in():
            going = {ticket.text: ticket for ticket in self._going}
            try:
                for text, token in self._drawing.step():
                    going[text].deliver(token)
            except Exception as error:
                # Whatever it was, the next requests may fare better: those of now are told.
                self._tell("a step failed", error)
                self._drawing.clear()
                self._leave(list(self._going), "failed")
                continue
            over = [each for each in self._going if each.text and each.text.ended]
            for ticket in over:
                if ticket.text is not None and ticket.text.failed is not None:
                    self._tell("a step failed", ticket.text.failed)
            self._leave(over)

    def _take_in(self) -> bool:
        """Lets requests out and in between two steps, waiting for one where there is none; whether
        there is to be another step."""
        with self._changed:
            while True:
                for ticket in [each for each in self._going if each.given_up]:
                    assert ticket.text is not None
                    self._drawing.remove(ticket.text)
                    self._going.remove(ticket)
                self._waiting = deque(each for each in self._waiting if not each.given_up)
                while self._waiting and len(self._going) < self._rows:
                    ticket = self._waiting.popleft()
                    try:
                        ticket.text = self._drawing.add(ticket.start, ticket.sampling)
                    except Exception as error:
                        self._tell("a step failed", error)
                        ticket.deliver(EndOfText("failed"))
                    else:
                        self._going.append(ticket)
                if self._closed or self._going:
                    return not self._closed
                self._changed.wait()

    def _leave(self, tickets: Sequence[GenerationRequest], why: str = "") -> None:
        with self._changed:
            for ticket in tickets:
                self._going.remove(ticket)
        for ticket in tickets:
            assert ticket.text is not None
            full = ticket.text.drawn >= ticket.sampling.max_tokens
            own = "failed" if ticket.text.failed else "length" if full else "stop"
            ticket.deliver(EndOfText(why or own))

    def _tell(self, what: str, error: Exception) -> None:
        self._report(one_line(f"{what}: {type(error).__name__}: {error}"))
