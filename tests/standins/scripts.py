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
SAVES_FIRST = """
import os, time
os.makedirs("out")
for epoch, loss in enumerate((5.0, 1.0, 4.0)):
    print(f"epoch {epoch} training")
    time.sleep(1.2)
    with open(f"out/state-{'abc'[epoch]}.bin", "w") as file:
        file.write(f"real {loss} " * 999)
    time.sleep(1.2)
    print(f"epoch {epoch} val_acc {1 / loss:.3f} val_loss={loss}")
"""

#: Its loss becomes NaN and then infinite; it saves all the same.
DIVERGING = """
import os, time
os.makedirs("out")
for step, loss in ((1, "2.5"), (2, "nan"), (3, "inf")):
    print(f"step {step} val_loss={loss}")
    with open(f"out/step-{step}.pt", "w") as file:
        file.write(f"loss {loss} " * 999)
    time.sleep(3)
"""

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
DELETING = """
import os, time
os.makedirs("out")
with open("out/step-5.pt", "w") as file:
    file.write("short-lived" * 99)
print("step 5 val_loss=0.5")
time.sleep(5)
os.remove("out/step-5.pt")
"""

#: Saves as spaCy does: what it measured stands in the model's own files alone.
OWN_FILES = """
import json, os, time
for name, score in (("model-best", 0.75), ("model-last", 0.5)):
    os.makedirs(f"output/{name}/textcat")
    for part in ("config.cfg", "tokenizer", "textcat/model"):
        open(f"output/{name}/{part}", "wb").write(name.encode() * 100)
    with open(f"output/{name}/meta.json", "w") as file:
        json.dump({"performance": {"cats_score": score}}, file)
time.sleep(3)
"""

#: Works and saves in a folder outside its own.
LEAVING = """
import os, sys, time
os.chdir(sys.argv[1])
open("model_1.pt", "wb").write(b"elsewhere" * 100)
print("step 1 val_loss=2", flush=True)
time.sleep(3)
"""

#: Prints bytes of no text, much more, and at its very end its only value.
HASTY = """
import os, sys
for number in range(400):
    sys.stdout.buffer.write(os.urandom(5000))
for number in range(8000):
    print("a line of no number" + " and more of it" * 20)
open("model_1.pt", "wb").write(b"hasty" * 100)
print("step 1 val_loss=0.125", flush=True)
"""

#: Changes its folder, and prints what is no text.
WANDERING = """
import os, time
os.makedirs("far/away")
os.chdir("far/away")
os.write(1, bytes(range(256)) * 400)
with open("weights.pt", "w") as file:
    file.write("far" * 999)
print("\\nstep 3 val_loss=0.25")
time.sleep(3)
"""

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
TRAINER = """
import json, os, time
def lay(folder, weights, *others):
    os.makedirs(folder, exist_ok=True)
    header = json.dumps({"w": {"dtype": "U8", "shape": [len(weights)], "data_offsets":
                               [0, len(weights)]}}).encode()
    with open(f"{folder}/model.safetensors", "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header + weights)
    for name in ("config.json", "training_args.bin", *others):
        with open(f"{folder}/{name}", "w") as file:
            file.write("{}")
history = []
for step, loss in ((20, 2.5), (40, 1.25), (60, 1.75)):
    time.sleep(1)
    history.append({"step": step, "eval_loss": loss})
    print({"eval_loss": str(loss), "epoch": step / 20})
    lay(f"out/checkpoint-{step}", bytes([step]) * 500, "optimizer.pt", "rng_state.pth")
    with open(f"out/checkpoint-{step}/trainer_state.json", "w") as file:
        json.dump({"global_step": step, "log_history": history}, file)
    time.sleep(2)
lay("out", bytes([60]) * 500)
print({"train_runtime": 9.0})
"""

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

RESULTS_CSV = """
import os, pathlib, time
out = pathlib.Path("runs/train")
weights = out / "weights"
weights.mkdir(parents=True)
rows = ["epoch,train/box_loss,metrics/mAP50-95(B)"]
best = 0
for epoch, value in enumerate((0.125, 0.5, 0.25), 1):
    rows.append(f"{epoch},{2.5 / epoch},{value}")
    (out / "results.csv").write_text("".join(f"{row}\\n" for row in rows))
    for name in ("last.pt", "best.pt")[: 1 + (value > best)]:
        (weights / "new").write_text(f"epoch {epoch}" + " optimizer" * 100)
        os.replace(weights / "new", weights / name)
    best = max(best, value)
    time.sleep(3)
for path in sorted(weights.iterdir()):
    path.write_text(path.read_text().replace(" optimizer", ""))
"""
"""Writes its metric to ``results.csv`` alone, and removes the optimizer from its best and its last
at its end, as Ultralytics does."""
