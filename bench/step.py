"""The training step of a GPT-2, Penstock next to PyTorch eager, taking turns in one run. See bench/README.md."""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

HERE = pathlib.Path(__file__).resolve().parent


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attend(self, x):
        batch, tokens, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))

    def feed(self, x):
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))

    def forward(self, x):
        return self.feed(self.attend(x))


class Gpt2(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(a.vocabulary, a.width), nn.Embedding(a.context, a.width)
        self.blocks = nn.ModuleList(Block(a.width, a.heads) for _ in range(a.layers))
        self.norm = nn.LayerNorm(a.width)

    def run_blocks(self, x):
        for block in self.blocks:
            x = block(x)
        return x

    def forward(self, inputs, targets):
        x = self.run_blocks(self.tokens(inputs) + self.positions.weight)
        logits = self.norm(x) @ self.tokens.weight.t()
        return F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), targets.reshape(-1))


class PyTorch:
    """Eager, with the fastest of PyTorch's AdamW forms on a CPU (fused) and the usual clipping."""

    def __init__(self, a, model=Gpt2):
        torch.set_num_threads(a.threads)
        self.model = model(a)
        self.free_gradients = True
        self.autocast = torch.autocast("cpu", torch.bfloat16, enabled=a.precision == "bfloat16")
        matrices = [p for p in self.model.parameters() if p.dim() > 1]
        vectors = [p for p in self.model.parameters() if p.dim() == 1]
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), fused=True)
        tokens = torch.randint(a.vocabulary, (a.batch, a.context + 1))
        self.inputs, self.targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def step(self):
        self.optimizer.zero_grad(set_to_none=self.free_gradients)
        with self.autocast:
            loss = self.model(self.inputs, self.targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.item()

    def steps(self, count):
        seconds = []
        for _ in range(count):
            began = time.perf_counter()
            self.step()
            seconds.append(time.perf_counter() - began)
        return seconds


class Penstock:
    def __init__(self, a):
        shape = [a.layers, a.width, a.heads, a.context, a.vocabulary, a.batch, a.threads, a.precision]
        self.process = subprocess.Popen([a.program] + [str(value) for value in shape],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def steps(self, count):
        print(count, file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in dict(layers=6, width=256, heads=8, context=256, vocabulary=50257, batch=8, threads=2).items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--rounds", type=int, default=10, help="turns of each side")
    parser.add_argument("--steps", type=int, default=3, help="steps in a turn")
    parser.add_argument("--program", default=HERE.parent / "build/release/bench/penstock_bench_step")
    parser.add_argument("--json", action="store_true")
    a = parser.parse_args()
    sides = {"penstock": Penstock(a), "pytorch": PyTorch(a)}
    for side in sides.values():
        side.steps(2)  # warm-up
    seconds = {name: [] for name in sides}
    ratios = []
    for round_number in range(a.rounds):
        turns = {name: sides[name].steps(a.steps) for name in sides}
        for name, turn in turns.items():
            seconds[name] += turn
        ratios.append(statistics.median(turns["penstock"]) / statistics.median(turns["pytorch"]))
        print(f"\rround {round_number + 1} of {a.rounds}", end="", file=sys.stderr)
    print(file=sys.stderr)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    result = {
        "penstock_ms": 1e3 * medians["penstock"],
        "pytorch_ms": 1e3 * medians["pytorch"],
        "ratio": medians["penstock"] / medians["pytorch"],
        "ratio_least": min(ratios),
        "ratio_most": max(ratios),
        "tokens_per_second": a.batch * a.context / medians["penstock"],
    }
    if a.json:
        print(json.dumps(result))
    else:
        print(f"{a.layers} layers, width {a.width}, context {a.context}, batch {a.batch}, vocabulary {a.vocabulary}, "
              f"{a.precision}, {a.threads} threads, torch {torch.__version__}")
        print("median step: penstock {penstock_ms:.1f} ms, pytorch eager {pytorch_ms:.1f} ms, ratio {ratio:.3f} "
              "(by round {ratio_least:.3f} to {ratio_most:.3f})".format(**result))


if __name__ == "__main__":
    main()
