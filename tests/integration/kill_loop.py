"""Kills trainings with SIGKILL around their saves, again and again, and continues each from what it
left: the newest checkpoint must always load, and the numbers must be those of a run that nobody
killed.

  python3 kill_loop.py [N]      N kills, 100 unless told; --seed S repeats the choices
"""

import argparse
import os
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import time

import penstock_cli as cli

VALUES = {
    "model.layers": 1,
    "model.width": 16,
    "model.dropout": 0.1,
    "train.steps": 1_000_000,
    # The rate of a step must not depend on how many follow: the length is only known at the end.
    "train.schedule": "constant",
    "run.keep": 2,
    "run.log_every": 1000,
}
SAVE_TIMEOUT_S = 60
POLL_S = 0.0002


class Failure(Exception):
    pass


def checkpoints(out):
    """{step: folder}. While a checkpoint is being replaced, the one before stands in for it."""
    found = {}
    for path in sorted(out.glob("step-*"), reverse=True):
        if (path / "manifest.json").exists():
            found[int(path.name[len("step-") :].removesuffix(".old"))] = path
    return found


def names_of_checkpoints(out):
    return {path.name for path in checkpoints(out).values()}


def latest_step(out):
    """Where `latest` leads; 0: there is none yet."""
    try:
        return int(os.readlink(out / "latest")[len("step-") :])
    except FileNotFoundError:
        return max(checkpoints(out), default=0)


def own_temporaries(out, pid):
    """What the process is writing or deleting, or was when it died."""
    try:
        names = os.listdir(out)
    except FileNotFoundError:
        return []
    kinds = (".tmp-step-", ".tmp-gone-", ".tmp-latest-")
    return [name for name in names if name.startswith(kinds) and name.endswith(f"-{pid}")]


def wait_until(is_time, process):
    deadline = time.monotonic() + SAVE_TIMEOUT_S
    while not is_time():
        if process.poll() is not None:
            raise Failure(f"the training ended by itself with exit code {process.returncode}")
        if time.monotonic() > deadline:
            raise Failure(f"nothing saved within {SAVE_TIMEOUT_S} s")
        time.sleep(POLL_S)


def kill_one(folder, rng, flags):
    """One training, killed. Gives the temporaries that the kill left."""
    out = folder / "out"
    with open(folder / "stderr.txt", "w", encoding="utf-8") as log:
        process = cli.start("train", "recipe.toml", *flags, cwd=folder, stdout=log, stderr=log)
        before = names_of_checkpoints(out)
        try:
            if rng.random() < 0.5:
                # Any moment after the first save.
                wait_until(lambda: names_of_checkpoints(out) - before, process)
                time.sleep(rng.uniform(0, 0.04))
            else:
                # Within one of the first saves, each of which takes a few milliseconds.
                for _ in range(rng.randint(1, 3)):
                    wait_until(lambda: not own_temporaries(out, process.pid), process)
                    wait_until(lambda: own_temporaries(out, process.pid), process)
                time.sleep(rng.uniform(0, 0.008))
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
    return own_temporaries(out, process.pid)


def require_loadable(folder):
    """Every checkpoint is what its manifest says, and the program loads the newest."""
    for step, path in checkpoints(folder / "out").items():
        damage = cli.checkpoint_damage(path, step)
        if damage:
            raise Failure(f"{path.name}: {damage}")
    result = cli.run("sample", "out", "--tokens", "0", "--json", cwd=folder)
    if result.code != 0:
        raise Failure(str(result))


def require_same_numbers(folder, flags, cut):
    """A last, whole run from what is left, and a run that nobody killed, agree bit for bit. Only
    the metrics of the steps in `cut` may be missing."""
    steps = max(checkpoints(folder / "out"), default=0) + 1
    for name, more in (("out", flags), ("straight", [])):
        values = {"run.out": name, "train.steps": steps}
        result = cli.run("train", "recipe.toml", *cli.settings(values), *more, cwd=folder)
        if result.code != 0:
            raise Failure(str(result))
    for name in ("model.safetensors", "optimizer.safetensors"):
        last = f"step-{steps:08d}"
        killed, straight = (folder / run / last / name for run in ("out", "straight"))
        if killed.read_bytes() != straight.read_bytes():
            raise Failure(f"{name} of {last} differs from that of a run without kills")
    found = cli.metric_losses(folder / "out")
    recorded = {step for step, _ in found}
    expected = cli.metric_losses(folder / "straight")
    if found != [entry for entry in expected if entry[0] in recorded or entry[0] not in cut]:
        raise Failure("metrics.jsonl differs from that of a run without kills")
    left = cli.temporaries(folder / "out")
    if left:
        raise Failure(f"left behind: {left}")
    return steps


def choose_start(out, rng):
    """(step, flags): from the latest mostly, at times from the one before, whose next save then
    replaces a checkpoint."""
    latest = latest_step(out)
    if latest == 0:
        return 0, []
    older = [step for step in checkpoints(out) if step < latest]
    if older and rng.random() < 0.25:
        return max(older), ["--resume", f"out/step-{max(older):08d}"]
    return latest, ["--resume", "out"]


def kill_loop(folder, kills, rng):
    cli.make_workspace(folder, VALUES)
    out = folder / "out"
    hits = {"writing": 0, "deleting": 0, "relinking": 0}
    num_hits = 0
    cut = set()
    began = time.monotonic()
    for number in range(1, kills + 1):
        start, flags = choose_start(out, rng)
        newest = max(checkpoints(out), default=0)
        cut.update(range(start + 1, newest + 1))  # whoever goes back drops these from the metrics
        left = kill_one(
            folder, rng, [*flags, *cli.settings({"run.save_every": rng.choice((1, 2))})]
        )
        hits["writing"] += any(name.startswith(".tmp-step-") for name in left)
        hits["deleting"] += any(name.startswith(".tmp-gone-") for name in left)
        hits["relinking"] += any(name.startswith(".tmp-latest-") for name in left)
        num_hits += bool(left)
        said = (folder / "stderr.txt").read_text()
        if start > 0 and f"at step {start}\n" not in said:
            raise Failure(f"did not resume at step {start}")
        # A start from an older checkpoint gives up those after it; nothing else may go back.
        if latest_step(out) < start or max(checkpoints(out), default=0) < start:
            raise Failure(f"went back: started at step {start}, the newest was {newest}")
        if latest_step(out) > 0:
            require_loadable(folder)
        if number % 10 == 0 or number == kills:
            print(f"{number} kills, {num_hits} within a save, step {latest_step(out)}", flush=True)
    flags = ["--resume", "out"] if latest_step(out) > 0 else []
    steps = require_same_numbers(folder, flags, cut)
    print(
        f"{kills} kills in {time.monotonic() - began:.0f} s, {num_hits} within a save "
        f"({', '.join(f'{count} {what}' for what, count in hits.items())}); every checkpoint "
        f"loaded, and {steps} steps equal those of a run without kills"
    )
    if num_hits < kills // 10:
        raise Failure("too few kills hit a save to show anything")


def main():
    parser = argparse.ArgumentParser(description="kill trainings around their saves")
    parser.add_argument("kills", type=int, nargs="?", default=100)
    parser.add_argument("--seed", type=int, default=None)
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else random.randrange(1_000_000)
    print(f"seed {seed}", flush=True)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="penstock-kill-"))
    try:
        kill_loop(folder, arguments.kills, random.Random(seed))
    except Failure as failure:
        print(f"FAILED: {failure}\nthe run's folder stays: {folder}", file=sys.stderr)
        log = folder / "stderr.txt"
        if log.exists():
            print(f"the last training said:\n{log.read_text()[-2000:]}", file=sys.stderr)
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
