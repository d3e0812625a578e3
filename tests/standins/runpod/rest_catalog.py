"""REST v2: the catalogue, with stock where it is asked for."""

from __future__ import annotations

from typing import Any

from tests.standins.runpod import catalog
from tests.standins.runpod.http_types import problem, reply
from tests.standins.runpod.world import Context
from tests.standins.web import Answer, Asked

PRODUCTS = {"POD", "CLUSTER", "SERVERLESS"}
ONLY_WITH_STOCK = ("product", "count", "cloud")


class Catalog:
    def __init__(self, world: Context) -> None:
        self._world = world

    def gpus(self, asked: Asked) -> Answer:
        refusal = self._refusal(asked)
        if refusal is not None:
            return refusal
        return reply({"gpus": [self._shown(gpu, asked) for gpu in catalog.GPUS]})

    def _stock(self, gpu: catalog.Gpu, place: str) -> str:
        return "NONE" if self._world.sold_out(gpu.id, place) else gpu.stock

    def _refusal(self, asked: Asked) -> Answer | None:
        """What the contract says of filters that need one another."""
        query = asked.query
        stock = "include" in query
        if stock and _list(asked, "include") != ["AVAILABILITY"]:
            return problem(422, "Request validation failed.", ["include: AVAILABILITY"])
        if stock and "product" not in query:
            return problem(400, "include=AVAILABILITY requires product")
        if not stock and any(name in query for name in ONLY_WITH_STOCK):
            return problem(400, "valid only with include=AVAILABILITY")
        if set(_list(asked, "product")) - PRODUCTS:
            return problem(422, "Request validation failed.", ["product: unknown value"])
        if not query.get("count", "1").isdigit() or int(query.get("count", "1")) < 1:
            return problem(422, "Request validation failed.", ["count: at least 1"])
        if query.get("cloud", "SECURE") not in ("SECURE", "COMMUNITY"):
            return problem(422, "Request validation failed.", ["cloud: unknown value"])
        return None

    def _shown(self, gpu: catalog.Gpu, asked: Asked) -> dict[str, Any]:
        query = asked.query
        shown: dict[str, Any] = {
            "id": gpu.id,
            "name": gpu.name,
            "pool": None,
            "manufacturer": gpu.manufacturer,
            "memory": gpu.memory_gb,
            "secure": gpu.secure > 0,
            "community": gpu.community > 0,
            "price": {"secure": gpu.secure, "community": gpu.community},
            "maxCount": {"secure": gpu.max_secure, "community": gpu.max_community},
        }
        if "include" not in query:
            return shown
        fits = int(query.get("count", "1")) <= gpu.most(query.get("cloud", "SECURE"))
        places = [place for place in catalog.DATA_CENTERS if place.id in gpu.data_centers]
        levels = {place.id: self._stock(gpu, place.id) for place in places} if fits else {}
        have = [place for place in places if levels.get(place.id, "NONE") != "NONE"]
        shown["availability"] = gpu.stock if have else "NONE"
        if have:
            shown["dataCenters"] = [
                {"id": place.id, "name": place.name, "availability": levels[place.id]}
                for place in places
            ]
        if gpu.manufacturer == "NVIDIA":
            shown["cudaVersions"] = [
                {"version": version, "available": free and bool(have)}
                for version, free in catalog.CUDA_VERSIONS
            ]
        return shown


def _list(asked: Asked, name: str) -> list[str]:
    return [item for item in asked.query.get(name, "").split(",") if item]
