"""This machine as a provider."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from trmcloud.providers.local.compute import LocalCompute
from trmcloud.providers.protocol import Provider

if TYPE_CHECKING:
    from trmcloud.operations.machines import Need


class Local(Provider):
    @cached_property
    def _pods(self) -> LocalCompute:
        return LocalCompute(self.site.home, self.site.python_path())

    def compute(self, name: str) -> LocalCompute:
        return self._pods

    def link(self, name: str) -> LocalCompute:
        return self._pods

    def needs(self) -> Sequence[Need]:
        return ()


PROVIDER = Local
