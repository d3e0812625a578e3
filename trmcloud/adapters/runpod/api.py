"""RunPod's REST v2, in the words of its contract and with our errors.

    what RunPod answers to a create             what it means here
    201 and a pod                               the pod
    400 or 5xx with a text of no capacity       NoCapacity
    any other 400, 404, 409, 422, 429           ProviderRefused: nothing was made
    401, 403, 402                               AuthError, AccessDenied, PaymentRequired
    any other 5xx, 408, silence, a lost line,
    2xx that cannot be read                     AmbiguousCreate: a pod may exist, and cost
    no connection at all                        ProviderError: nothing was asked

A create is sent once and never again: whoever wants to know what became of it lists pods by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import httpx2 as httpx

from trmcloud.adapters.runpod import models
from trmcloud.adapters.runpod.http import CREATE_S, Http, NotThere, Transient
from trmcloud.core.errors import (
    AmbiguousCreate,
    NoCapacity,
    ProviderError,
    ProviderRefused,
)

#: Texts of refusals that mean "nothing was made, try elsewhere", as they were met in the field:
#: there is no code for it. Lower case; any part of the detail.
NO_CAPACITY = (
    "no longer any instances available",
    "there are no instances available",
    "no instances currently available",
    "does not have the resources to deploy",
    "not enough free gpus",
    "could not find any pods with required specifications",
)
_Made = TypeVar("_Made")
_NEVER_SENT = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.ProxyError,
    httpx.UnsupportedProtocol,
)


class RunPodApi:
    """``base`` is the URL before ``/v2``."""

    def __init__(self, http: Http, base: str) -> None:
        self.http = http
        self._base = base

    # -- pods ------------------------------------------------------------------------------------

    def pods(self, *, bound_s: float | None = None) -> list[models.Pod]:
        return models.read_pods(*self._get("/pods", bound_s=bound_s))

    def pod(self, pod_id: str) -> models.Pod | None:
        try:
            return models.read_pod(*self._get(f"/pods/{pod_id}"))
        except NotThere:
            return None

    def create_pod(self, body: Mapping[str, Any]) -> models.Pod:
        """See this module's table.

        Raises:
            NoCapacity, ProviderRefused, AmbiguousCreate, ProviderError
        """
        return self._create("/pods", body, "a pod", models.read_pod)

    def delete_pod(self, pod_id: str) -> bool:
        """Whether RunPod took the deletion; False where it knows no such pod, which proves nothing.

        Raises:
            ProviderError: neither way of ending it was taken.
        """
        try:
            self.http.read("DELETE", self._url(f"/pods/{pod_id}"))
            return True
        except NotThere:
            return False
        except ProviderError as error:
            return self._terminate(pod_id, error)

    def _terminate(self, pod_id: str, first: ProviderError) -> bool:
        """The other way, for when the first is refused. Asking twice ends nothing twice."""
        url = self._url(f"/pods/{pod_id}/action")
        try:
            response = self.http.send("POST", url, body={"action": "terminate"})
        except httpx.HTTPError:
            raise first from None
        if response.is_success:
            return True
        raise first

    # -- storage ---------------------------------------------------------------------------------

    def volumes(self) -> list[models.Volume]:
        return models.read_volumes(*self._get("/network-volumes"))

    def create_volume(self, name: str, size_gb: int, data_centre: str) -> models.Volume:
        body = {"name": name, "size": size_gb, "dataCenter": data_centre}
        return self._create("/network-volumes", body, "a network volume", models.read_volume)

    def grow_volume(self, volume_id: str, size_gb: int) -> models.Volume:
        path = f"/network-volumes/{volume_id}"
        # Setting a size again changes nothing, so this may be repeated like a read.
        response = self.http.read("PATCH", self._url(path), body={"size": size_gb})
        where = self.http.where("PATCH", self._url(path))
        return models.read_volume(self.http.json(response, where), where)

    def delete_volume(self, volume_id: str) -> bool:
        try:
            self.http.read("DELETE", self._url(f"/network-volumes/{volume_id}"))
            return True
        except NotThere:
            return False

    # -- what things cost ------------------------------------------------------------------------

    def billing(
        self, *, starts_at: float, ends_at: float, pod_id: str = ""
    ) -> list[models.BillingRecord]:
        """Records by the hour that touch the time given (epoch s), of one pod or of all."""
        params = {
            "startTime": models.rfc3339(starts_at),
            "endTime": models.rfc3339(ends_at),
            "bucketSize": "hour",
        }
        if pod_id:
            params["podId"] = pod_id
        return models.read_billing(*self._get("/billing/pods", params))

    def catalogue(self, params: Mapping[str, str]) -> Any:
        """``GET /v2/catalog/gpus``, as it came: see ``offers``."""
        return self._get("/catalog/gpus", params)[0]

    def ssh_keys(self) -> int:
        """How many keys the account has on record: a question that any key may ask."""
        data, where = self._get("/account/ssh-keys")
        if not isinstance(data.get("keys"), list):
            raise ProviderError("RunPod's answer is not what its contract says: keys", where=where)
        return len(data["keys"])

    # -- how -------------------------------------------------------------------------------------

    def _url(self, path: str) -> str:
        return f"{self._base}/v2{path}"

    def _get(
        self,
        path: str,
        params: Mapping[str, str] | None = None,
        bound_s: float | None = None,
    ) -> tuple[dict[str, Any], str]:
        url = self._url(path)
        where = self.http.where("GET", url)
        response = self.http.read("GET", url, params=params, bound_s=bound_s)
        return self.http.json(response, where), where

    def _create(
        self, path: str, body: Mapping[str, Any], what: str, read: Callable[[Any, str], _Made]
    ) -> _Made:
        url = self._url(path)
        where = self.http.where("POST", url)
        try:
            response = self.http.send("POST", url, body=dict(body), timeout_s=CREATE_S)
        except _NEVER_SENT as error:
            raise ProviderError(
                f"RunPod cannot be reached: {error}", where=where, next_step="check the network"
            ) from None
        except httpx.HTTPError as error:
            raise AmbiguousCreate(
                f"RunPod was asked for {what} and did not answer: {type(error).__name__}",
                where=where,
                next_step="nothing to do: it is looked for by its name",
            ) from None
        if response.is_success:
            try:
                return read(self.http.json(response, where), where)
            except ProviderError as error:
                raise AmbiguousCreate(
                    f"RunPod said it made {what}, in words that cannot be read: {error.what}",
                    where=where,
                    next_step="nothing to do: it is looked for by its name",
                ) from None
        raise self._refused(response, what, where)

    def _refused(self, response: httpx.Response, what: str, where: str) -> ProviderError:
        code, detail = response.status_code, self.http.detail(response)
        without_case = detail.casefold()
        if (code == 400 or code >= 500) and any(text in without_case for text in NO_CAPACITY):
            return NoCapacity(
                f"RunPod has none free: {detail}",
                where=where,
                next_step="the next best offer; other data centres with trmcloud plan",
            )
        error = self.http.refusal(response, where)
        if code == 429:
            return ProviderRefused(error.what, where=where, next_step="wait a minute, then again")
        if isinstance(error, Transient) or not 400 <= code < 500:
            return AmbiguousCreate(
                f"RunPod answers {code}, and may have made {what} all the same: {detail}",
                where=where,
                next_step="nothing to do: it is looked for by its name",
            )
        if isinstance(error, ProviderRefused):
            return error
        return ProviderRefused(error.what, where=where, next_step="trmcloud plan, then launch anew")
