"""Classes that are completed when they are first used."""

from __future__ import annotations

import sys
import threading
from dataclasses import fields

from trmcloud.core.values import dataclass


def test_threads_complete_a_class_at_once() -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    errors: list[BaseException] = []
    try:
        for _ in range(60):

            @dataclass(frozen=True)
            class Base:
                a: int

            @dataclass(frozen=True)
            class Value(Base):
                b: int = 2

            start = threading.Barrier(6)

            def use(kind: type[Value] = Value, start: threading.Barrier = start) -> None:
                start.wait()
                try:
                    assert kind(1).b == 2
                    assert [field.name for field in fields(kind)] == ["a", "b"]
                except BaseException as error:
                    errors.append(error)

            threads = [threading.Thread(target=use) for _ in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        sys.setswitchinterval(before)
    assert errors == []
