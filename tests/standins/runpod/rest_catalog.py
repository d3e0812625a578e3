"""REST v2: the catalogue, with stock where it is asked for."""

from __future__ import annotations

import re
from typing import Any

from tests.standins.runpod import catalog
from tests.standins.runpod.http_types import Answer, Asked, problem, reply
from tests.standins.runpod.world import Context

PRODUCTS = {"POD", "CLUSTER", "SERVERLESS"}
ONLY_WITH_STOCK = ("product", "count", "cloud", "countryCodes", "cudaVersions", "minCudaVersion")
_EXACT = re.compile(r"^\d+\.\d+$")
_LEAST = re.compile(r"^\d+(\.\d+)?$")


class Catalog:
    def __init__(self, world: Context) -> None:
        self._world = world

    def gpus(self, asked: Asked) -> Answer:
        refusal = self._refusal(asked)
        if refusal is not None:
            return refusal
        shown = [self._shown(gpu, asked) for gpu in catalog.GPUS]
        if "countryCodes" in asked.query:
            shown = [gpu for gpu in shown if "dataCenters" in gpu]
        return reply({"gpus": shown})

    def gpu(self, asked: Asked, gpu_id: str) -> Answer:
        refusal = self._refusal(asked)
        if refusal is not None:
            return refusal
        gpu = catalog.gpu(gpu_id)
        return reply(self._shown(gpu, asked)) if gpu else problem(404, "GPU type not found")

    def cpus(self, asked: Asked) -> Answer:
        shown = [
            {
                "id": cpu.id,
                "name": cpu.name,
                "group": cpu.group,
                "vcpu": {"min": cpu.least, "max": cpu.most},
                "ramGbPerVcpu": cpu.ram_gb_per_vcpu,
                "price": {"securePerVcpu": cpu.per_vcpu, "serverlessPerVcpu": cpu.per_vcpu},
            }
            for cpu in catalog.CPUS
        ]
        return reply({"cpus": shown})

    def data_centers(self, asked: Asked) -> Answer:
        includes = _list(asked, "include")
        if set(includes) - {"GPU_AVAILABILITY", "CPU_AVAILABILITY"}:
            return problem(422, "Request validation failed.", ["include: unknown value"])
        shown = []
        for place in catalog.DATA_CENTERS:
            if "regions" in asked.query and place.region not in _list(asked, "regions"):
                continue
            kinds = _list(asked, "networkVolumeTypes")
            if kinds and not set(kinds) & set(place.volume_types):
                continue
            shown.append(self._place(place, includes))
        return reply({"dataCenters": shown})

    def _place(self, place: catalog.DataCenter, includes: list[str]) -> dict[str, Any]:
        shown: dict[str, Any] = {
            "id": place.id,
            "name": place.name,
            "region": place.region,
            "networkVolumeTypes": list(place.volume_types),
            "compliance": list(place.compliance),
            "globalNetwork": place.global_network,
        }
        if "GPU_AVAILABILITY" in includes:
            offered = [gpu for gpu in catalog.GPUS if place.id in gpu.data_centers]
            if offered:
                shown["gpuAvailability"] = [
                    {"id": gpu.id, "name": gpu.name, "availability": self._stock(gpu, place.id)}
                    for gpu in offered
                ]
        if "CPU_AVAILABILITY" in includes:
            shown["cpuAvailability"] = [
                {"id": f"{cpu.id}-2-4", "name": cpu.name, "availability": "HIGH"}
                for cpu in catalog.CPUS
            ]
        return shown

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
        if not _LEAST.match(query.get("minCudaVersion", "12")) or not all(
            _EXACT.match(version) for version in _list(asked, "cudaVersions")
        ):
            return problem(422, "Request validation failed.", ["CUDA version: major.minor"])
        if "minCudaVersion" in query and "cudaVersions" in query:
            return problem(400, "cudaVersions and minCudaVersion exclude each other")
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
        countries = _list(asked, "countryCodes")
        places = [
            place
            for place in catalog.DATA_CENTERS
            if place.id in gpu.data_centers and (not countries or place.country in countries)
        ]
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
                if self._wanted(version, asked)
            ]
        return shown

    def _wanted(self, version: str, asked: Asked) -> bool:
        exact = _list(asked, "cudaVersions")
        if exact:
            return version in exact
        least = asked.query.get("minCudaVersion")
        return least is None or catalog.version(version) >= catalog.version(least)


def _list(asked: Asked, name: str) -> list[str]:
    return [item for item in asked.query.get(name, "").split(",") if item]
