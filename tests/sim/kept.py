"""Seeds that once broke something, and what each taught. None is ever exchanged for another."""

from __future__ import annotations

KEPT = {
    7106073: "agent and judge wait equally long for a trainer that hangs while it lands",
    60000711: "an agent that forgot a trainer before it reported its end still reads its last word",
    50002190: "a pod goes on from what the bucket's list shows",
    50005346: "a delete that was taken before a backup was restored is nobody's to charge again",
    50011269: "a pod goes on from what the bucket's list shows, though the newest is not in it",
    50027570: "a list that lacks a stray does not reconcile a restored ledger",
    50030789: "what a driver saw and could not write down is known to nobody",
    50051894: "a stopped controller can do nothing from that moment on",
    50055489: "a pod that lost its disk neither trains nor stores the same again",
    50059398: "an end that was begun is gone on with where no list shows the pod",
    50064573: "a create is not sent by one that slept since it was decided on",
    50070538: "a pod that is looked for in vain is charged while it is listed, and billed nothing",
    50071502: "a create is not sent by one that slept twice",
}
