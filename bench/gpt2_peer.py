"""GPT-2's training step in PyTorch, as fast as its users make it: the peer of `penstock bench step`.

A worker: each line on stdin is a command, each answer one line of JSON on stdout.

    warm SECONDS     steps until all is compiled and that many seconds have passed
    window SECONDS   {"tokens_per_second", "steps", "seconds", "peak_gib", "reserved_gib", "loss"}
    losses N FILE    N steps from the weights of a safetensors file (names and layout of Hugging Face's GPT-2) on the
                     tokens of --data: int64, for each step batch x (context + 1); the losses are of the true vocabulary
    release          gives cached device memory back, for others to use between windows
    quit

What goes wrong is {"error": "..."}, and the worker ends with 1.
"""
import argparse
import contextlib
import json
import math
import os
import sys
import time
import traceback

import torch
import torch._functorch.config
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

PAD_TO = 64  # 50257 -> 50304
GIB = 2**30


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        x = x + self.out(attention(self.qkv(self.norm1(x)), self.heads))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


def attention(qkv, heads):
    batch, tokens, width = qkv.shape
    q, k, v = (t.view(batch, tokens, heads, -1).transpose(1, 2) for t in qkv.split(width // 3, dim=2))
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return mixed.transpose(1, 2).reshape(batch, tokens, width // 3)


class Gpt2(nn.Module):
    """Forward and loss, so that one compiled graph holds both."""

    def __init__(self, a, rows, num_recomputed):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(rows, a.width), nn.Embedding(a.context, a.width)
        self.blocks = nn.ModuleList(Block(a.width, a.heads) for _ in range(a.layers))
        self.norm = nn.LayerNorm(a.width)
        self.num_recomputed = num_recomputed  # the first ones: they recompute when the others are freed
        self.true_vocabulary = None  # set: the logits of padded rows take no part in the loss
        self.residual = torch.bfloat16 if a.residual == "bf16" else torch.float32
        self.initialise(a.layers)

    def initialise(self, layers):
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                deviation = 0.02 / math.sqrt(2 * layers) if name.endswith(("out.weight", "down.weight")) else 0.02
                nn.init.normal_(parameter, std=deviation)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, inputs, targets):
        x = (self.tokens(inputs) + self.positions.weight).to(self.residual)
        for i, block in enumerate(self.blocks):
            x = checkpoint(block, x, use_reentrant=False) if i < self.num_recomputed else block(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        if self.true_vocabulary is not None:
            logits = logits[..., :self.true_vocabulary]
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def allow_attention(backend):
    """Only this one: a kernel that cannot run is an error, not a slower kernel in its place. For the whole process,
    since recomputed blocks run outside of any context that forward set."""
    torch.backends.cuda.enable_flash_sdp(backend == "flash")
    torch.backends.cuda.enable_cudnn_sdp(backend == "cudnn")
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_math_sdp(False)


def time_attention(a, backend):
    """Milliseconds of one layer's attention, forward and backward, with the strides that the model has."""
    allow_attention(backend)
    qkv = torch.randn(a.batch, a.context, 3 * a.width, device=a.device, dtype=torch.bfloat16, requires_grad=True)
    gradient = torch.randn(a.batch, a.context, a.width, device=a.device, dtype=torch.bfloat16)
    count = 30
    for i in range(2 * count):
        if i == count:
            torch.cuda.synchronize()
            began = time.perf_counter()
        qkv.grad = None
        attention(qkv, a.heads).backward(gradient)
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - began) / count


def choose_attention(a):
    """The name of the kernel, and what its trial took where there was one."""
    if a.device == "cpu" or a.precision == "fp32":
        return "default", {}
    if a.sdpa != "auto":
        allow_attention(a.sdpa)
        return a.sdpa, {}
    trials = {}
    for backend in ("cudnn", "flash"):
        try:
            trials[backend] = time_attention(a, backend)
        except RuntimeError as error:
            print(f"attention with {backend}: {error}", file=sys.stderr)
    if not trials:
        raise RuntimeError("neither cuDNN's nor flash attention runs at this shape; try --precision fp32")
    best = min(trials, key=trials.get)
    allow_attention(best)
    torch.cuda.empty_cache()
    return best, trials


class Peer:
    def __init__(self, a):
        self.a = a
        torch.manual_seed(a.seed)
        torch.set_float32_matmul_precision("high")
        self.sdpa, self.sdpa_trials = choose_attention(a)
        kind, _, budget = a.recompute.partition("=")
        if kind == "budget":
            torch._functorch.config.activation_memory_budget = float(budget)
        # The cache on disk does not know which attention kernel a graph was traced with.
        torch._functorch.config.enable_autograd_cache = False
        num_recomputed = {"all": a.layers, "half": a.layers // 2}.get(kind, 0)
        self.rows = -(-a.vocabulary // PAD_TO) * PAD_TO if a.pad else a.vocabulary
        self.model = Gpt2(a, self.rows, num_recomputed).to(a.device)
        self.forward = self.model
        if a.mode == "compile":
            chosen = None if a.compile_mode == "default" else a.compile_mode
            self.forward = torch.compile(self.model, fullgraph=True, dynamic=False, mode=chosen)
        self.autocast = torch.autocast(a.device, torch.bfloat16, enabled=a.precision == "bf16")
        self.saved = contextlib.nullcontext
        if kind == "offload":
            self.saved = lambda: torch.autograd.graph.save_on_cpu(pin_memory=a.device == "cuda")
        self.reset_optimizer()
        tokens = torch.randint(a.vocabulary, (a.batch, a.context + 1), device=a.device)
        self.batch = split_batch(tokens)
        self.step_s = None  # of the latest measurement
        self.is_cold = True  # the next step compiles, or takes its memory from the driver

    def reset_optimizer(self):
        parameters = list(self.model.parameters())
        groups = [{"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.1},
                  {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=self.a.lr, betas=(0.9, 0.95), eps=1e-8, fused=True)

    def step(self, inputs, targets):
        self.optimizer.zero_grad(set_to_none=True)
        with self.autocast, self.saved():
            loss = self.forward(inputs, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.detach()

    def synchronize(self):
        if self.a.device == "cuda":
            torch.cuda.synchronize()

    def timed_steps(self, count):
        """Seconds of that many steps, and the last loss; the device is waited for before and after, not between."""
        self.synchronize()
        began = time.perf_counter()
        for _ in range(count):
            loss = self.step(*self.batch)
        self.synchronize()
        return time.perf_counter() - began, loss.item()

    def get_ready(self):
        """Seconds until steps run as they will go on running: the first compiles, the second may compile again."""
        seconds = 0.0
        if self.is_cold:
            seconds, _ = self.timed_steps(2)
            self.is_cold = False
        if self.step_s is None:
            self.step_s, _ = self.timed_steps(1)
        return seconds

    def steps_in(self, seconds):
        return max(1, round(seconds / self.step_s))

    def warm(self, seconds):
        compile_s = self.get_ready()
        began, steps = time.perf_counter(), 0
        while (left := seconds - (time.perf_counter() - began)) > 0:
            count = min(self.steps_in(left), self.steps_in(1.0))
            spent, _ = self.timed_steps(count)
            self.step_s = spent / count
            steps += count
        return {"steps": steps, "seconds": time.perf_counter() - began, "compile_seconds": compile_s, **self.about()}

    def window(self, seconds):
        self.get_ready()
        count = self.steps_in(seconds)
        is_cuda = self.a.device == "cuda"
        if is_cuda:
            torch.cuda.reset_peak_memory_stats()
        spent, loss = self.timed_steps(count)
        self.step_s = spent / count
        return {"tokens_per_second": count * self.a.batch * self.a.context / spent, "steps": count, "seconds": spent,
                "peak_gib": torch.cuda.max_memory_allocated() / GIB if is_cuda else None,
                "reserved_gib": torch.cuda.max_memory_reserved() / GIB if is_cuda else None, "loss": loss}

    def losses(self, count, file):
        a = self.a
        if a.data is None:
            raise ValueError("losses needs the tokens of --data FILE")
        tokens_per_step = a.batch * (a.context + 1)
        available = os.path.getsize(a.data) // (8 * tokens_per_step)
        if available < count:
            raise ValueError(f"{a.data} has tokens for {available} steps of {tokens_per_step}, not for {count}")
        tokens = torch.from_file(a.data, shared=False, size=count * tokens_per_step, dtype=torch.int64)
        if tokens.min() < 0 or tokens.max() >= a.vocabulary:
            raise ValueError(f"{a.data} has tokens outside of the vocabulary of {a.vocabulary}")
        self.load(file)
        self.reset_optimizer()
        self.model.true_vocabulary = a.vocabulary if self.rows > a.vocabulary else None
        losses = []
        for one in tokens.view(count, a.batch, a.context + 1):
            losses.append(self.step(*split_batch(one.to(a.device))))
        self.model.true_vocabulary = None
        return {"losses": torch.stack(losses).float().tolist()}

    @torch.no_grad()
    def load(self, file):
        from safetensors.torch import load_file
        stored = {name.removeprefix("transformer."): tensor for name, tensor in load_file(file).items()}
        for name, parameter in self.model.named_parameters():
            theirs = hugging_face_name(name)
            if theirs not in stored:
                raise ValueError(f"{file} has no {theirs}")
            value = stored[theirs]
            is_matrix = value.dim() > 1 and not name.startswith(("tokens", "positions"))
            value = value.t() if is_matrix else value  # Conv1D is [in, out], Linear [out, in]
            if name == "tokens.weight":
                padding = value.new_zeros(max(0, self.rows - self.a.vocabulary), value.shape[1])
                value = torch.cat([value[:self.a.vocabulary], padding])
            if value.shape != parameter.shape:
                raise ValueError(f"{file}: {theirs} gives {list(value.shape)}, the model has {list(parameter.shape)}")
            parameter.copy_(value)

    def release(self):
        self.optimizer.zero_grad(set_to_none=True)
        if self.a.device == "cuda":
            self.synchronize()
            torch.cuda.empty_cache()
        self.is_cold = True
        return {"released": True}

    def about(self):
        a = self.a
        return {"mode": a.mode, "recompute": a.recompute, "precision": a.precision, "residual": a.residual,
                "vocabulary_rows": self.rows, "sdpa": self.sdpa, "sdpa_trial_ms": self.sdpa_trials,
                "device": torch.cuda.get_device_name() if a.device == "cuda" else "cpu", "torch": torch.__version__}


def split_batch(tokens):
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def hugging_face_name(name):
    if name.startswith("blocks."):
        _, block, module, kind = name.split(".")
        theirs = {"norm1": "ln_1", "norm2": "ln_2", "qkv": "attn.c_attn", "out": "attn.c_proj", "up": "mlp.c_fc",
                  "down": "mlp.c_proj"}[module]
        return f"h.{block}.{theirs}.{kind}"
    module, kind = name.split(".")
    return {"tokens": "wte", "positions": "wpe", "norm": "ln_f"}[module] + "." + kind


def obey(peer, words):
    match words:
        case ["warm", seconds]:
            return peer.warm(float(seconds))
        case ["window", seconds]:
            return peer.window(float(seconds))
        case ["losses", count, *file] if file:
            return peer.losses(int(count), " ".join(file))
        case ["release"]:
            return peer.release()
    raise ValueError(f"unknown command: {' '.join(words)}")


class Parser(argparse.ArgumentParser):
    def error(self, message):  # for main() to report
        raise ValueError(message)


def parse_arguments():
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    for name, default in dict(layers=12, width=768, heads=12, context=1024, vocabulary=50257, batch=64).items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--mode", choices=["eager", "compile"], default="eager")
    parser.add_argument("--compile-mode", default="default", help="such as max-autotune-no-cudagraphs")
    parser.add_argument("--recompute", default="none", help="none, half, all, budget=0.5 (with compile), offload")
    parser.add_argument("--sdpa", choices=["auto", "cudnn", "flash"], default="auto", help="auto: the faster one")
    parser.add_argument("--pad", action=argparse.BooleanOptionalAction, default=True,
                        help=f"vocabulary rounded up to a multiple of {PAD_TO}")
    parser.add_argument("--residual", choices=["fp32", "bf16"], default="fp32", help="type of the residual stream")
    parser.add_argument("--precision", choices=["bf16", "fp32"], default="bf16")
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data", help="int64 tokens for the command losses")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    a = parser.parse_args()
    kind, _, value = a.recompute.partition("=")
    if a.recompute not in ("none", "half", "all", "offload") and kind != "budget":
        raise ValueError(f"--recompute {a.recompute}: none, half, all, budget=FRACTION or offload")
    if kind == "budget" and not 0 <= float(value) <= 1:
        raise ValueError(f"--recompute {a.recompute}: the budget is from 0 to 1")
    if kind == "budget" and a.mode != "compile":
        raise ValueError("--recompute budget=... is torch.compile's; add --mode compile")
    if a.precision == "fp32":
        a.residual = "fp32"
    if a.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("there is no CUDA device; try --device cpu")
    return a


def main():
    # Only answers go to stdout, whatever libraries print there.
    answers = os.fdopen(os.dup(1), "w")
    if "--help" not in sys.argv and "-h" not in sys.argv:
        os.dup2(2, 1)

    def answer(result):
        print(json.dumps(result), file=answers, flush=True)

    try:
        peer = Peer(parse_arguments())
        for line in iter(sys.stdin.readline, ""):
            words = line.split()
            if words == ["quit"]:
                answer({"quit": True})
                return 0
            if words:
                answer(obey(peer, words))
    except Exception as error:
        traceback.print_exc()
        first_line = (str(error).strip() or repr(error)).splitlines()[0]
        answer({"error": f"{type(error).__name__}: {first_line}"})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
