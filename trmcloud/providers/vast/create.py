"""A create in vast.ai's words, and the first program of the container.

vast.ai takes 4,096 characters of arguments and 32,768 of variables, each of 256 at most (its
OpenAPI, ``x-input-validation``). The agent's sources do not fit, so that they follow once the
container runs: the first program listens at the container's port 22 and takes the one archive whose
SHA-256 it was created with; then it becomes the agent's first process, whose SSH server has that
port from then on. Until the archive is there it holds the hard stop by itself, with the instance's
own key.

The agent's lease, jobs and keys are compressed and cut into variables of 240 characters.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trmcloud.core.contract.pod_contract import POD_SSH_PORT
from trmcloud.core.errors import NotSupported
from trmcloud.core.storage import pod_disks_gb
from trmcloud.operations.sending import packing
from trmcloud.operations.sending.packing import POD_ENTRY, POD_PREFIX
from trmcloud.ports.compute import PodKeys, PodRequest
from trmcloud.providers.vast import self_end
from trmcloud.providers.vast.traits import NAME

MOST_ARGUMENTS = 4096
MOST_VALUE = 256
MOST_VARIABLES = 32_768
PIECE = 240
ENV_PIECE = "TRMCLOUD_P"
"""Followed by a number: a piece of the agent's lease, jobs and keys."""
BOOT_WITHIN_S = 1200
"""A container that was not given the agent's sources by then ends its instance."""
GREETING = b"trmcloud-boot "
"""The first program's greeting to a connection, before the archive's SHA-256 and a newline."""

_STAGE = f"""\
import base64,hashlib,io,json,os,socket,sys,tarfile,threading,time,urllib.request as u,zlib
e=os.environ
for l in open("/proc/1/environ","rb").read().split(b"\\0"):
    k,_,v=l.decode("utf-8","replace").partition("=")
    if k.startswith(("CONTAINER_","{ENV_PIECE}")):e.setdefault(k,v)
t="";n=0
while "{ENV_PIECE}%d"%n in e:t+=e.pop("{ENV_PIECE}%d"%n);n+=1
w=json.loads(zlib.decompress(base64.b64decode(t)))
e.update(w["env"])
def end(why):
    print("trmcloud: this instance ends: "+why,flush=True)
    a=e.get("TRMCLOUD_VAST_API") or "https://console.vast.ai"
    a+="/api/v0/instances/"+e["CONTAINER_ID"]+"/"
    h={{"Authorization":"Bearer "+e["CONTAINER_API_KEY"],"User-Agent":"trmcloud"}}
    h["Content-Type"]="application/json"
    while 1:
        try:u.urlopen(u.Request(a,b"{{}}",h,method="DELETE"),timeout=30)
        except Exception as x:print("trmcloud: "+type(x).__name__,flush=True)
        time.sleep(20)
if sys.version_info<(3,10):end("its python3 is older than 3.10")
p="{POD_PREFIX}/"+w["sha"]
def go():
    sys.stdout.flush();e["PYTHONPATH"]=p
    os.execvp("python3",["python3","-m","{POD_ENTRY}"])
if os.path.exists(p+"/ok"):go()
until=min(time.time()+w["within"],w["stop"])
s=socket.socket();s.setsockopt(socket.SOL_SOCKET,socket.SO_REUSEADDR,1)
try:s.bind(("0.0.0.0",{POD_SSH_PORT}));s.listen(8)
except OSError as x:end(str(x))
while 1:
    left=until-time.time()
    if left<=0:end("no archive has come to run")
    s.settimeout(left)
    try:
        c,_=s.accept();c.settimeout(20);c.sendall({GREETING!r}+w["sha"].encode()+b"\\n")
        d=b"";g=time.time()+60
        while len(d)<w["size"] and time.time()<g:
            r=c.recv(65536)
            if not r:break
            d+=r
        if hashlib.sha256(d).hexdigest()!=w["sha"]:c.close();continue
        t=tarfile.open(fileobj=io.BytesIO(d))
        t.extraction_filter=getattr(tarfile,"data_filter",None)
        t.extractall(p);open(p+"/ok","w").close()
        c.sendall(b"taken\\n");c.close();s.close()
    except OSError:continue
    go()
"""
_SCRIPT = (
    "python3 -c \"import base64,zlib;exec(zlib.decompress(base64.b64decode('{stage}')))\";"
    "while :; do "
    'curl -sS -m 30 -X DELETE -H "Authorization: Bearer $CONTAINER_API_KEY"'
    " -H 'Content-Type: application/json' -d '{{}}' {api}/api/v0/instances/$CONTAINER_ID/;"
    "sleep 20; done"
)
"""Where the image has no python3, or that fails, the instance ends by whatever the image has."""


def boot_payload(trainer: Path | None = None) -> bytes:
    """See ``packing.boot_payload``."""
    return packing.boot_payload(NAME, Path(self_end.__file__), trainer)


def create_body(
    request: PodRequest,
    keys: Callable[[str], PodKeys],
    payload: bytes,
    image: str,
    environment: Mapping[str, str],
    account_key: str,
) -> dict[str, Any]:
    """The body of ``PUT /api/v0/asks/{id}/``. ``environment`` is added to every agent's.

    Raises:
        NotSupported: vast.ai does not take a request of this size, or the account's key is in it.
    """
    image = request.image or image
    told = {
        "env": {**environment, **request.agent_words(keys(request.name), NAME, image)},
        "sha": hashlib.sha256(payload).hexdigest(),
        "size": len(payload),
        "within": BOOT_WITHIN_S,
        "stop": request.latest_stop_at,
    }
    variables = {f"-p {POD_SSH_PORT}:{POD_SSH_PORT}": "1", **pieces(told)}
    body: dict[str, Any] = {
        "client_id": "me",
        "image": image,
        "env": variables,
        "disk": pod_disks_gb(NAME, request.disk_gb),
        "label": request.name,
        # Whatever the image says (the client's ``--user``): another user could not open port 22.
        "user": "root",
        "runtype": "args",
        "onstart": "/bin/sh",
        "args": ["-c", script(environment)],
        "cancel_unavail": True,
    }
    _require_size(body)
    _require_no_key(body, told, account_key)
    return body


def pieces(told: Mapping[str, Any]) -> dict[str, str]:
    """The agent's lease, jobs and keys, as variables."""
    packed = zlib.compress(json.dumps(told, separators=(",", ":"), sort_keys=True).encode(), 9)
    text = base64.b64encode(packed).decode("ascii")
    starts = range(0, len(text), PIECE)
    return {f"{ENV_PIECE}{n}": text[at : at + PIECE] for n, at in enumerate(starts)}


def script(environment: Mapping[str, str]) -> str:
    """The container's command, in one line: what follows ``/bin/sh -c``."""
    stage = base64.b64encode(zlib.compress(_STAGE.encode(), 9)).decode("ascii")
    api = environment.get("TRMCLOUD_VAST_API") or "https://console.vast.ai"
    return _SCRIPT.format(stage=stage, api=api)


def _require_size(body: Mapping[str, Any]) -> None:
    arguments = len(body["onstart"]) + sum(map(len, body["args"]))
    variables = sum(len(name) + len(value) for name, value in body["env"].items())
    longest = max(len(value) for value in body["env"].values())
    if arguments > MOST_ARGUMENTS or variables > MOST_VARIABLES or longest > MOST_VALUE:
        raise NotSupported(
            f"the request for this instance has {arguments:,} characters of arguments and "
            f"{variables:,} of variables; vast.ai takes {MOST_ARGUMENTS:,} and "
            f"{MOST_VARIABLES:,}: nothing was rented",
            next_step="use fewer phases, or shorter names",
        )


def _require_no_key(body: Mapping[str, Any], told: Mapping[str, Any], account_key: str) -> None:
    """A host can read its container's variables, and the account's key rents and ends
    everything."""
    if account_key and account_key in json.dumps([body, told], ensure_ascii=False):
        raise NotSupported(
            "the account's key would be on the host, which could rent with it: nothing was rented",
            next_step="remove the key from the variables of this run",
        )
