#!/usr/bin/env python3
"""Loss curves of one small GPT-2, from the same weights on the same batches: on the CPU in float32, on the GPU in every
precision, and PyTorch's bfloat16 on the GPU. Prints the largest relative difference of each to the first.

    bench/losses.py --penstock build/cuda/app/penstock --start build/cuda/tests/penstock_start [--steps 50] [--out FILE]
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

MODEL = {"layers": 6, "width": 256, "heads": 4, "context": 256, "vocabulary": 256}
SETTINGS = {f"model.{key}": value for key, value in MODEL.items()} | {
    "data.path": "docs,src,app", "train.batch": 16, "train.schedule": "constant", "train.warmup": 0,
    "train.beta2": 0.95, "train.weight_decay": 0.1, "train.clip": 1.0, "run.sample_tokens": 0, "run.validate_every": 0,
    "run.save_every": 0, "run.log": "none", "data.split": 0}


def settings(extra):
    return [part for key, value in (SETTINGS | extra).items() for part in ("--set", f"{key}={value}")]


def penstock_losses(args, folder, extra):
    extra = {"train.lr": args.lr, "train.steps": args.steps, "run.out": f"{folder}/run", **extra}
    command = [args.penstock, "train", args.recipe, "--json", "-q", *settings(extra)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def torch_losses(args, folder):
    command = [args.python, args.peer, "--mode", "eager", "--batch", "16", "--lr", str(args.lr),
               "--data", f"{folder}/batches.bin"]
    for key, value in MODEL.items():
        command += [f"--{key}", str(value)]
    lines = f"losses {args.steps} {folder}/start.safetensors\nquit\n"
    done = subprocess.run(command, input=lines, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[0])["losses"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--penstock", default="build/cuda/app/penstock")
    parser.add_argument("--start", default="build/cuda/tests/penstock_start")
    parser.add_argument("--recipe", default="recipes/demo.toml")
    parser.add_argument("--python", default=sys.executable, help="a Python that has torch and safetensors")
    parser.add_argument("--peer", default=str(pathlib.Path(__file__).parent / "gpt2_peer.py"))
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--precisions", default="float32,tf32,bfloat16,float16")
    parser.add_argument("--out", help="write all curves to this JSON file")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        plain = [f"{key}={value}" for key, value in SETTINGS.items()]
        subprocess.run([args.start, args.recipe, str(args.steps), folder, *plain], check=True)
        curves = {"cpu float32": penstock_losses(args, folder, {"run.device": "cpu"})["losses"]}
        for precision in args.precisions.split(","):
            extra = {"run.device": "cuda", "train.precision": precision}
            curves[f"cuda {precision}"] = penstock_losses(args, folder, extra)["losses"]
        curves["torch bfloat16"] = torch_losses(args, folder)
    first = curves["cpu float32"]
    print(f"{args.steps} steps, loss from {first[0]:.4f} to {first[-1]:.4f}")
    for name, losses in curves.items():
        worst = max(abs(a / b - 1) for a, b in zip(losses, first, strict=True))
        print(f"{name:16} last {losses[-1]:.5f}, at most {100 * worst:.3f} % from the CPU's float32")
    ours, theirs = curves["cuda bfloat16"], curves["torch bfloat16"]
    worst = max(abs(a / b - 1) for a, b in zip(ours, theirs, strict=True))
    print(f"cuda bfloat16 is at most {100 * worst:.3f} % from torch bfloat16")
    if args.out:
        pathlib.Path(args.out).write_text(json.dumps(curves))


if __name__ == "__main__":
    main()
