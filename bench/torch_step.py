"""The peer of step.py: a GPT-2 in PyTorch eager, and its training step on the CPU."""
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


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
