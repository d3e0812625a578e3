"""A rented machine that lies: real pods whose side of the conversation says what no agent would."""

from __future__ import annotations

import time

from tests.e2e.runpod_user import ACCEPT, RentedUser
from tests.e2e.user import LAUNCH, until
from tests.standins.runpod.pods import Pod
from trmcloud.core.control.run_state import State
from trmcloud.core.errors import Outcome
from trmcloud.core.text import strip_control

MODE = "/tmp/mode"
#: Whatever is sent from the pod passes ``tr``: each word of the pod's mode adds a lie of its own.
LIAR = r"""mkdir -p /usr/local/bin; : > /tmp/mode
cat > /usr/local/bin/lie.py <<'X'
import base64, glob, json
def tell(label, content, *words):
    print(label, *words, base64.b64encode(content).decode(), flush=True)
mode = open('/tmp/mode').read().split()
report = json.load(open(glob.glob('/workspace/trmcloud/pods/*/agent.json')[0]))
STEER = "\u001b]0;PWNED\u0007\u001b[2J\u009b31m\u202e\ud83d\r\nerror: all your money is gone"
check = {"name": "order" + STEER, "passed": True, "blocking": True, "detail": STEER}
kept = {"phase": "fast", "step": 1, "sha256": "a" * 64, "size_bytes": 5, "val_bpb": 1.0}
if 'digits' in mode:
    print('metrics.jsonl/fast', '9' * 5000, 'QUJD')
    print('train.log/fast', '\u00b2'.encode().decode('latin-1'), 'QUJD')
if 'kept' in mode:
    tell('agent', json.dumps({**report, "kept": [{**kept, "phase": "a/b"}]}).encode())
if 'badgate' in mode:
    report['phases'][0]['gate'] = {"passed": True}
    tell('agent', json.dumps(report).encode())
if 'gate' in mode:
    report['phases'][0]['gate'] = {"phase": "fast", "passed": True, "checks": [check]}
    report['message'] = STEER
    tell('agent', json.dumps(report).encode())
if 'garbage' in mode:
    for text in (b'[' * 200000, b'{"version": 1', b'\xff\xfe', b'9' * 5000, b'NaN', b'null'):
        tell('agent', text)
        tell('heartbeat/fast', text)
        tell('manifest/fast', text, 'step-00000001', '1-1')
X
cat > /usr/local/bin/tr <<'X'
#!/bin/sh
grep -q silent /tmp/mode && cat > /dev/null || cat
echo; PYTHONIOENCODING=utf-8:surrogatepass /usr/bin/python3 /usr/local/bin/lie.py
X
chmod 755 /usr/local/bin/tr; which tr
"""


def lie(rented: RentedUser, pod: Pod, *modes: str) -> None:
    rented.standin.control.inside(pod.id, f"echo {' '.join(modes)} > {MODE}")


def launched(rented: RentedUser, hard_stop_s: float) -> Pod:
    """A run in training whose pod lies from now on, as it is told to."""
    plan_id = rented.plan_to_bind("--budget", "0.30", hard_stop_s=hard_stop_s, landing_s=6.0)
    rented.start("launch", plan_id, "-y", *ACCEPT)
    rented.run_in(State.RUNNING)
    until(lambda: rented.only_run().trains, what="training")
    (pod,) = rented.live()
    assert "/usr/local/bin/tr" in rented.standin.control.inside(pod.id, LIAR)
    return pod


def heard(rented: RentedUser) -> None:
    """Wait until the launch must have asked the pod again."""
    time.sleep(2.5)


def test_no_lie_of_a_pod_disables_a_command(rented: RentedUser) -> None:
    pod = launched(rented, 150.0)
    (launch,) = rented.started[-1:]
    run_id = rented.only_run().run_id
    metrics = f"/workspace/trmcloud/runs/{run_id}/fast/metrics.jsonl"
    rented.standin.control.inside(
        pod.id, f"head -c 200000 /dev/zero | sed 's/\\x00/[/g' >> {metrics}; echo >> {metrics}"
    )
    for modes in (("digits",), ("kept", "silent"), ("badgate", "silent"), ("garbage", "silent")):
        lie(rented, pod, *modes)
        heard(rented)
        assert launch.poll() is None, modes
        assert run_id in rented.run("status"), modes
    rented.run("budget", "show")
    rented.run("admin", "reap", "--yes")
    assert rented.live() == [pod], "a pod that lies is not ended before its time for that alone"
    assert not rented.only_run().gates, "what is no verdict is on no record"
    shown = _told_of_steering(rented, pod, run_id)
    assert "error: all your money is gone" not in shown.splitlines()
    rented.run("stop", "-y", "-d", run_id)
    lie(rented, pod, "digits")
    rented.run("stop", "-y", "--now", "-d", run_id)
    rented.see_out(launch, code=(0, *(outcome.exit_code for outcome in Outcome)), within_s=120)
    assert rented.live() == []
    mine = (*LAUNCH, "--steps", "5", "--budget", "0.5")
    rented.run(*mine)


def _told_of_steering(rented: RentedUser, pod: Pod, run_id: str) -> str:
    """What ``status RUN`` shows once a verdict full of control characters is on record."""
    lie(rented, pod, "gate")
    until(lambda: bool(rented.only_run().gates), what="the verdict")
    shown = rented.run("status", run_id)
    assert "gate after fast" in shown
    assert strip_control(shown) == shown
    return shown
