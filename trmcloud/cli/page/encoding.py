"""Views as the page's JSON: an amount as text and as a number, each text as one line."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from enum import Enum
from typing import Any

from trmcloud.core.money import Usd
from trmcloud.core.text import one_line


def page_json(value: Any) -> Any:
    """Return ``value`` as the page reads it. A float that is not finite is null; a field whose name
    is a word of Python stands without its underscore."""
    if isinstance(value, Usd):
        return {"text": str(value), "usd": float(value)}
    if isinstance(value, Enum):
        return page_json(value.value)
    if isinstance(value, str):
        return one_line(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {one_line(str(key)): page_json(each) for key, each in value.items()}
    if dataclasses.is_dataclass(value):
        names = (field.name for field in dataclasses.fields(value))
        return {name.rstrip("_"): page_json(getattr(value, name)) for name in names}
    if isinstance(value, (list, tuple)):
        return [page_json(each) for each in value]
    return value
