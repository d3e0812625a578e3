"""Training scripts of strangers, each with a habit of its own: what ``trmcloud run`` is tried on.

Standard library only; each is the text of a file.
"""

from __future__ import annotations

#: Prints a step and its loss every tenth of a second, saves every tenth step, dies of SIGTERM.
PLAIN = """
import os, time
os.makedirs("out", exist_ok=True)
for step in range(1, 100000):
    time.sleep(0.05)
    print(f"step {step} val_loss={100 / step:.4f}")
    if step % 10 == 0:
        with open(f"out/step-{step}.pt", "wb") as file:
            file.write(os.urandom(5000))
"""

#: Saves every tenth step, and at its end, of which a signal tells it; quick.
LISTENING = """
import os, signal, sys, time
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(1))
os.makedirs("out", exist_ok=True)
for step in range(1, int(sys.argv[1]) + 1 if len(sys.argv) > 1 else 41):
    time.sleep(0.05)
    print(f"step {step} train_loss={5 / step:.4f} val_loss={100 / step:.4f}", flush=True)
    if step % 10 == 0 or told:
        with open(f"out/step-{step}.pt", "w") as file:
            file.write(str(step))
    if told:
        break
"""

#: Hears of its end by the module, saves then, and says how good it is.
POLITE = """
import os, trmcloud_job
assert trmcloud_job.deadline() is not None and 0 < trmcloud_job.seconds_left() < 1e5
os.makedirs("saved/last")
step = 0
import time
while not (step and trmcloud_job.should_stop()):
    step += 1
    trmcloud_job.report(step, val_loss=1 / step)
    time.sleep(0.05)
with open("saved/last/model.bin", "wb") as file:
    file.write(b"polite" * 1000)
with open("saved/last/config.json", "w") as file:
    file.write("{}")
trmcloud_job.checkpoint("saved/last", metric=1 / step)
"""

#: Ignores whatever can be ignored.
DEAF = """
import os, signal, time
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
os.makedirs("out", exist_ok=True)
with open("out/step-1.pt", "wb") as file:
    file.write(b"deaf" * 100)
print("step 1 val_loss=1.0")
while True:
    time.sleep(0.1)
"""

#: Leaves children behind: one in a session of its own, one that has shed its environment, too.
FORKING = """
import os, subprocess, sys, time
nap = "import time\\nwhile True: time.sleep(0.2)"
subprocess.Popen([sys.executable, "-c", nap], start_new_session=True)
subprocess.Popen([sys.executable, "-c", nap, "SHED"], start_new_session=True, env={})
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve(sys.executable, [sys.executable, "-c", nap, "SHED"], {})
    os._exit(0)
print("step 1")
time.sleep(float(sys.argv[1]))
"""

#: Kills whoever started it, and goes on.
ATTACKING = """
import os, signal, subprocess, sys, time
nap = "import time\\nwhile True: time.sleep(0.2)"
subprocess.Popen([sys.executable, "-c", nap, "SHED"], start_new_session=True, env={})
time.sleep(2.5)
os.kill(os.getppid(), signal.SIGKILL)
while True:
    time.sleep(0.2)
"""

#: Gigabytes of log, were it let: lines, a line without an end, and what steers terminals.
LOUD = """
import os, sys, time
os.makedirs("out", exist_ok=True)
line = b"x" * 200 + b"\\x1b[2J\\x1b]0;stolen\\x07\\n"
for _ in range(320):
    os.write(1, line * 1000)
os.write(1, b"y" * 2_000_000)
os.write(1, b"\\nstep 7 val_loss=0.5\\n")
with open("out/step-7.pt", "wb") as file:
    file.write(b"loud")
print("the last words")
"""

#: Each checkpoint is one that must not be taken, but for the last.
CROOKED = """
import os, time
os.makedirs("out/step-1"); os.symlink("/etc/passwd", "out/step-1/model.pt")
deep = "out/step-2/" + "/".join("abcdefgh"); os.makedirs(deep)
open(deep + "/model.pt", "wb").write(b"deep")
os.makedirs("out/step-3")
for n in range(1100): open(f"out/step-3/{n}.pt", "wb").close()
open("out/step-4.pt", "wb").write(b"z" * 3_000_000)
open("out/step-5.pt", "wb").write(b"PK\\x03\\x04 half a zip")
os.symlink("step-1", "out/latest")
open("out/step-6.pt", "wb").write(b"sound")
print("step 6 val_loss=0.25")
time.sleep(4)
"""

#: Saves each epoch and evaluates then, as many a loop does.

#: Its loss becomes NaN and then infinite; it saves all the same.

#: Writes the next one over the last, too often for a copy.
OVERWRITING = """
import time
for step in range(1, 9):
    print(f"step {step} val_loss={1 / step:.3f}")
    with open("model.bin", "w") as file:
        file.write(f"{step:04}" * 999)
    time.sleep(0.8)
"""

#: Deletes what it saved.

#: Saves as spaCy does: what it measured stands in the model's own files alone.

#: Works and saves in a folder outside its own.
LEAVING = """
import os, sys, time
os.chdir(sys.argv[1])
open("model_1.pt", "wb").write(b"elsewhere" * 100)
print("step 1 val_loss=2", flush=True)
time.sleep(3)
"""

#: Prints bytes of no text, much more, and at its very end its only value.

#: Changes its folder, and prints what is no text.

#: Leaves a daemon behind, and nothing else.
DAEMON = """
import os, sys, time
if os.fork():
    sys.exit(0)
os.setsid()
if os.fork():
    os._exit(0)
while True:
    time.sleep(0.2)
"""

#: Saves no checkpoint, but a table.
TABLE = """
import time
with open("predictions.csv", "w") as file:
    file.write("a,b\\n1,2\\n")
time.sleep(1)
"""

#: Files as transformers' Trainer leaves them: checkpoints, a final model, and its arguments.

OWN_BEST = """
import os, pathlib, sys, time
weights = pathlib.Path("runs/weights")
weights.mkdir(parents=True)
def save(name, text):
    weights.joinpath("new").write_text(text)
    os.replace(weights / "new", weights / name)
for epoch in range(1, 5):
    save("last.pt", f"epoch {epoch}")
    if epoch == 2:
        save("best.pt", f"epoch {epoch}")
    time.sleep(3)
sys.exit(sys.argv[1])
"""
"""Names its best and its last, and prints no metric; exits with what stands for its
argument."""
