"""RunPod's REST v2, in the words of its contract and with our errors.

    what RunPod answers to a create             what it means here
    201 and a pod                               the pod
    400 or 5xx with a text of no capacity       NoCapacity: the next candidate
    any other 400, 403, 404, 409                ProviderRefused: the next candidate
    401, 402, 410, 413, 422                     AuthError, PaymentRequired, Gone, FinalRefusal:
                                                no candidate will do
    429                                         Throttled: nothing was made, ask again later
    any other 5xx, 408, silence, a lost line,
    2xx that cannot be read                     AmbiguousCreate: a pod may exist, and cost
    no connection at all                        ProviderError: nothing was asked

Here a create is sent once and never again: there is no key that would make the second one harmless,
so its result is looked for by listing pods by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import httpx2 as httpx

from trmcloud.adapters.request_budget import Priority
from trmcloud.core.clock import rfc3339
from trmcloud.core.errors import AmbiguousCreate, NoCapacity, ProviderError, ProviderRefused
from trmcloud.ports.compute import ThrottledError, TransientError
from trmcloud.providers.client import CREATE_S, NotThere
from trmcloud.providers.runpod import models
from trmcloud.providers.runpod.http import Http

#: Texts of refusals that mean "nothing was made, try elsewhere", as they were met in the field:
#: there is no code for it. Lower case; any part of the detail.
NO_CAPACITY = (
    "no longer any instances available",
    "there are no instances available",
    "no instances currently available",
    "does not have the resources to deploy",
    "not enough free gpus",
    "could not find any pods with required specifications",
    "no pods with required specifications",
    # Texts that RunPod's SDK 2.0 takes for no capacity.
    "insufficient capacity",
    "no available machine",
    "out of stock",
)
PAGE = 1000
"""Pods in a page: the most that RunPod gives."""
MOST_PAGES = 20
"""A list that is longer is not believed to end; RunPod allows 60 requests a minute in all."""
LIST_S = 60.0
"""The time that a list may take with all its pages."""
_Made = TypeVar("_Made")
_Row = TypeVar("_Row", models.Pod, models.Volume)
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
        self._ended: set[str] = set()

    # -- pods ------------------------------------------------------------------------------------

    def pods(self, *, cluster_members: bool = False) -> list[models.Pod]:
        """Every pod of the account, page by page; those of clusters where they are wanted.

        Raises:
            ProviderError: the list could not be walked to its end. A part of it is none: a pod
                that is missing from a list counts as gone.
        """
        params = {"limit": str(PAGE)}
        if cluster_members:
            params["includeClusterPods"] = "true"
        return self._walk("/pods", params, models.read_pods, "pods")

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

        There are two ways. The second is for when the first is refused, or was taken before and
        the pod is still there. Asking twice ends nothing twice.

        Raises:
            ProviderError: neither way of ending it was taken.
        """
        again = pod_id in self._ended
        self._ended.add(pod_id)
        if again and self._terminate(pod_id):
            return True
        try:
            self.http.read("DELETE", self._url(f"/pods/{pod_id}"), priority=Priority.END)
            return True
        except NotThere:
            return False
        except ProviderError:
            if not again and self._terminate(pod_id):
                return True
            raise

    def _terminate(self, pod_id: str) -> bool:
        url = self._url(f"/pods/{pod_id}/action")
        try:
            body = {"action": "terminate"}
            return self.http.send("POST", url, body=body, priority=Priority.END).is_success
        except httpx.HTTPError:
            return False

    def log_text(self, pod_id: str, tail: int) -> list[str]:
        """The newest ``tail`` lines of the pod's log, as lines of an event stream, and what else
        comes before that falls silent.

        Raises:
            ProviderError: RunPod did not give it.
        """
        return self.http.read_stream(self._url(f"/pods/{pod_id}/logs"), {"tail": str(tail)})

    # -- storage ---------------------------------------------------------------------------------

    def volumes(self) -> list[models.Volume]:
        """Every network volume of the account, page by page.

        Raises:
            ProviderError: as ``pods``. A volume that is missing from a list counts as deleted.
        """
        return self._walk("/network-volumes", {}, models.read_volumes, "network volumes")

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
            url = self._url(f"/network-volumes/{volume_id}")
            self.http.read("DELETE", url, priority=Priority.END)
            return True
        except NotThere:
            return False

    # -- what things cost ------------------------------------------------------------------------

    def billing(
        self, *, starts_at: float, ends_at: float, pod_id: str = ""
    ) -> list[models.BillingRecord]:
        """Records by the hour that touch the time given (epoch s), of one pod or of all."""
        params = {
            "startTime": rfc3339(starts_at),
            "endTime": rfc3339(ends_at),
            "bucketSize": "hour",
        }
        if pod_id:
            params["podId"] = pod_id
        return models.read_billing(*self._get("/billing/pods", params))

    def account_money(self, bound_s: float) -> models.AccountMoney:
        """The account's balance, and whether it is prepaid. Scope ``billing:read``.

        Raises:
            AccessDenied: the key lacks that scope. NotThere: RunPod has no such address.
            AuthError, ProviderError
        """
        return models.read_account_money(*self._get("/billing/balance", bound_s=bound_s))

    def spend_rate(self, bound_s: float) -> models.SpendRate:
        """The limit of the account's spending per hour. Scope ``account:read``.

        Raises:
            AccessDenied, NotThere, AuthError, ProviderError: as ``account_money``.
        """
        return models.read_spend_rate(*self._get("/account/limits", bound_s=bound_s))

    def billed_lately(self) -> list[models.BillingRecord]:
        """Records of every pod, of this hour and the one before it."""
        params = {"bucketSize": "hour", "lastN": "2"}
        return models.read_billing(*self._get("/billing/pods", params))

    def catalogue(self, params: Mapping[str, str]) -> Any:
        """``GET /v2/catalog/gpus``, as it came: see ``offers``."""
        return self._get("/catalog/gpus", params)[0]

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
        is_list = path == "/pods" or path.startswith("/pods/")
        priority = Priority.LIST if is_list else Priority.ORDINARY
        response = self.http.read("GET", url, params=params, priority=priority, bound_s=bound_s)
        return self.http.json(response, where), where

    def _walk(
        self,
        path: str,
        params: Mapping[str, str],
        read: Callable[[Any, str], tuple[list[_Row], str | None]],
        what: str,
    ) -> list[_Row]:
        """Return the rows of all pages, each id once.

        Raises:
            ProviderError: the list could not be read to its end.
        """
        found: dict[str, _Row] = {}
        cursors: set[str] = set()
        began_at, asked, where = self.http.now(), dict(params), ""
        for _ in range(MOST_PAGES):
            if cursors and not 0 <= self.http.now() - began_at < LIST_S:
                raise _endless(what, f"it was not read within {LIST_S:.0f} s", where)
            data, where = self._get(path, asked)
            rows, cursor = read(data, where)
            # One that was made while the list was read moves the rest down a place.
            found |= {row.id: row for row in rows}
            if cursor is None:
                return list(found.values())
            if cursor in cursors:
                raise _endless(what, "its pages repeat", where)
            cursors.add(cursor)
            asked["cursor"] = cursor
        raise _endless(what, f"there is more after {MOST_PAGES} pages", where)

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
                f"RunPod did not answer the request for {what}: {type(error).__name__}",
                where=where,
                next_step="nothing to do: it will be found by its name",
            ) from None
        if response.is_success:
            try:
                return read(self.http.json(response, where), where)
            except ProviderError as error:
                raise AmbiguousCreate(
                    f"RunPod made {what}, but its answer cannot be read: {error.what}",
                    where=where,
                    next_step="nothing to do: it will be found by its name",
                ) from None
        raise self._refused(response, what, where)

    def _refused(self, response: httpx.Response, what: str, where: str) -> ProviderError:
        code, detail = response.status_code, self.http.detail(response)
        without_case = detail.casefold()
        if (code == 400 or code >= 500) and any(text in without_case for text in NO_CAPACITY):
            return NoCapacity(
                f"RunPod has no free machine: {detail}",
                where=where,
                next_step="use the next best offer, or other data centres with trmcloud plan",
            )
        error = self.http.refusal(response, where)
        if isinstance(error, ThrottledError):
            return error
        if code == 403:
            return ProviderRefused(
                f"RunPod does not permit this for this key or account: {detail}",
                where=where,
                next_step="use other hardware; or give the key read and write access to pods",
            )
        if isinstance(error, TransientError) or not 400 <= code < 500:
            return AmbiguousCreate(
                f"RunPod answers {code}, and may have made {what} anyway: {detail}",
                where=where,
                next_step="nothing to do: it will be found by its name",
            )
        if isinstance(error, ProviderRefused):
            return error
        return ProviderRefused(
            error.what, where=where, next_step="trmcloud plan, then launch again"
        )


def _endless(what: str, why: str, where: str) -> ProviderError:
    return ProviderError(
        f"RunPod's list of {what} does not end: {why}",
        where=where,
        next_step="check RunPod's console; if this happens again, RunPod's API has changed",
    )
