"""The world in which the mission's commands are run as they are written: an account at the stand-in
of RunPod whose pods have a real torch, a data host on loopback, and a user with nothing but a key.

Net, vocabulary, batch and steps are shrunk by ``TRMCLOUD_TEST_SETTINGS``; all else is real.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from tests.e2e import web_corpus
from tests.e2e.rented import skip_without_pods
from tests.e2e.user import IMPATIENT, User, python_of_ranks
from tests.standins.data_host import DataHost, serving
from tests.standins.runpod.containers import SYSTEM_PATH
from tests.standins.runpod.fixture import judged

SETTINGS = """\
depth = 1
width = 32
head_dim = 16
vocab_size = 320
sequence = 32
batch = 1
accumulation = 1
steps = 12
dtype = "float32"
compile = false
eval_every = 6
eval_tokens = 1024
save_every = 6
log_every = 3
"""


@contextlib.contextmanager
def world(folder: Path, *, reach: Sequence[int] = ()) -> Iterator[tuple[User, DataHost]]:
    """(a user in an empty home, the host of their data); ``reach``: more ports that pods reach."""
    skip_without_pods()
    inside = python_of_ranks(folder / "image")
    image_env = {
        "PATH": f"{inside}:{SYSTEM_PATH}",
        "OMP_NUM_THREADS": "1",  # eight ranks share what cores there are
    }
    settings = folder / "small.toml"
    settings.write_text(SETTINGS)
    host = web_corpus.put_on(DataHost(), folder / "corpus")
    with serving(host):
        ports = [*reach, *(urlsplit(url).port or 0 for url in (host.hub, host.cdn))]
        with judged(folder / "runpod", keep=[inside], image_env=image_env, reach=ports) as standin:
            standin.control.set_balance(2_500.0)  # two launches of $1000 are held against it
            user = User(folder, trainer=None, program=IMPATIENT)
            user.environment |= {
                **standin.environment,
                "TRMCLOUD_RUNPOD_IMAGE": "an/image:with-this-machines-torch",
                "TRMCLOUD_TEST_SETTINGS": str(settings),
                **host.environment,
            }
            yield user, host
