"""What a pod is given to start with: the agent's sources in one variable, and the command for them.

They travel in the create and not over SSH, so that the agent, which alone can end the pod without
us, runs from the container's first second. An image needs /bin/sh and a python3 of 3.10 or newer
with its standard library; no bash, base64, tar, gzip, xz or curl.
"""

from __future__ import annotations

import base64
from functools import cache
from pathlib import Path

from trmcloud.app.staging.bundle import bundle_root
from trmcloud.app.staging.packing import JOB, LATER, own_sources, pack, trainers_share
from trmcloud.core.contract.pod_contract import ENV_BOOT, ENV_LINGER_S

ENTRY = "trmcloud.pod.boot"
PREFIX = "/opt/trmcloud"
#: Before what cannot start ends its pod: for the line that says why to be read in the log.
_READ_S = 60

#: Put before whatever entry point the image has: RunPod's own images inherit one from NVIDIA's,
#: which is a bash script and ends the container where it does not like the driver.
ENTRYPOINT = ("/bin/sh", "-c")

#: base85's characters that RunPod replaces in a variable, that Go writes as six, or that whoever
#: starts a container may expand; and those of none of these kinds that stand for them.
_TAKEN, _INSTEAD = "{}<>&$", "[].:/,"

_START = f"""\
import sys
if sys.version_info < (3, 10):
    sys.exit("trmcloud: this image's python3 is %d.%d; a pod needs 3.10" % sys.version_info[:2])
try:
    import base64, gzip, io, os, tarfile
    text = os.environ["{ENV_BOOT}"].translate(str.maketrans("{_INSTEAD}", "{_TAKEN}"))
    packed = gzip.decompress(base64.b85decode(text))
    tarfile.TarFile(fileobj=io.BytesIO(packed)).extractall("{PREFIX}")
    sys.path.insert(0, "{PREFIX}")
    import {ENTRY}
except Exception as error:
    what = "%s: %s" % (type(error).__name__, error)
    sys.exit("trmcloud: the agent cannot be started on this image: " + what)
"""
_ASK = """\
import os, sys, urllib.request as u
head = {"Authorization": "Bearer " + os.environ["RUNPOD_API_KEY"], "User-Agent": "trmcloud",
        "Content-Type": "application/json"}
u.urlopen(u.Request(sys.argv[1], sys.argv[2].encode(), head), timeout=30)
"""
#: A container whose command ends is started again while its rent goes on. So what cannot start
#: stays, and asks for the pod's end by whatever the image has.
_SCRIPT = f"""\
if ! command -v python3 >/dev/null; then
    echo "trmcloud: there is no python3 in this image: the agent cannot be started" >&2
elif python3 -W ignore -c "$1"; then
    export PYTHONPATH={PREFIX}
    exec python3 -m {ENTRY}
fi
stay="${{{ENV_LINGER_S}:-{_READ_S}}}"
echo "trmcloud: this pod asks for its own end in $stay s" >&2
sleep "$stay" || exit
pod="${{TRMCLOUD_RUNPOD_API:-https://api.runpod.io}}"
pod="${{pod%/v2}}/v2/pods/$RUNPOD_POD_ID/action"
end='{{"action":"terminate"}}'
kind='Content-Type: application/json'
while :; do
    python3 -c "$2" "$pod" "$end"
    printf 'header = "Authorization: Bearer %s"\\n' "$RUNPOD_API_KEY" |
        curl -sS -m 30 -K - -H "$kind" -d "$end" "$pod"
    runpodctl pod delete "$RUNPOD_POD_ID" || runpodctl remove pod "$RUNPOD_POD_ID"
    sleep 30 || exit
done >/dev/null 2>&1
"""


@cache
def boot_payload(trainer: Path | None = None) -> bytes:
    """A tar.gz of what a pod runs; the same sources give the same bytes. Takes most of a second.

    The trainer follows by SSH, with what it imports of trmcloud and what uploads its checkpoints.

    Raises:
        DataError: the ``trainer``'s package (the bundled one's if None) could not run there.
    """
    trainers_share(trainer or bundle_root() / "model")
    return pack(own_sources(ENTRY, later=(*LATER, JOB)))


def boot_environment(payload: bytes) -> dict[str, str]:
    """In base85, which takes a sixteenth less room than base64."""
    text = base64.b85encode(payload).decode("ascii")
    return {ENV_BOOT: text.translate(str.maketrans(_TAKEN, _INSTEAD))}


def boot_command() -> list[str]:
    """What follows ``ENTRYPOINT``: unpack, then become the agent's first process."""
    return [_SCRIPT, "trmcloud", _START, _ASK]
