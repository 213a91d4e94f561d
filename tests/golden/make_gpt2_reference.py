"""Writes the reference numbers for GPT-2 of tests/model/reference_test.cpp, computed by PyTorch.

    pip install torch==2.11.0 transformers safetensors numpy
    python tests/golden/make_gpt2_reference.py

The model is Hugging Face's GPT-2, which shares no code with Penstock's. Everything is float32 on the CPU.
"""
import json
import pathlib

import torch
from safetensors.torch import save_file
from transformers import GPT2Config, GPT2LMHeadModel

HERE = pathlib.Path(__file__).parent
SHAPE = dict(n_layer=2, n_embd=48, n_head=4, n_positions=24, vocab_size=97)
OPTIONS = dict(family="gpt2", layers=2, width=48, heads=4, context=24, vocabulary=97)  # the same, as recipes have it
BATCH, STEPS = 6, 20


def make_model():
    torch.manual_seed(11)
    model = GPT2LMHeadModel(GPT2Config(**SHAPE, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))
    with torch.no_grad():
        # Weights far from their start: biases and norms that are not 0 and 1 show more mistakes.
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def named_parameters(model):
    return {name: parameter for name, parameter in model.named_parameters()}  # a tied one appears once


def mean_loss(model, tokens):
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    logits = model(inputs).logits
    return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))


def decay_groups(model, weight_decay):
    parameters = list(model.parameters())
    return [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0},
    ]


class Lamb(torch.optim.Optimizer):
    """You et al. 2020, written out; PyTorch has none. A tensor without decay keeps a trust ratio of 1."""

    def __init__(self, groups, lr, betas, eps):
        super().__init__(groups, dict(lr=lr, betas=betas, eps=eps))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state.update(t=0, m=torch.zeros_like(p), v=torch.zeros_like(p))
                state["t"] += 1
                state["m"].mul_(beta1).add_(p.grad, alpha=1 - beta1)
                state["v"].mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)
                m = state["m"] / (1 - beta1 ** state["t"])
                v = state["v"] / (1 - beta2 ** state["t"])
                update = m / (v.sqrt() + group["eps"]) + group["weight_decay"] * p
                scaled = group["weight_decay"] > 0
                ratio = (p.norm() / update.norm()).item() if scaled else 1.0
                p.add_(update, alpha=-group["lr"] * ratio)


OPTIMIZERS = {
    "adamw": lambda model: torch.optim.AdamW(decay_groups(model, 0.1), lr=3e-3, betas=(0.9, 0.95), eps=1e-8),
    "sgd": lambda model: torch.optim.SGD(decay_groups(model, 0.01), lr=0.1, momentum=0.9),
    "nesterov": lambda model: torch.optim.SGD(decay_groups(model, 0.01), lr=0.1, momentum=0.9, nesterov=True),
    "lamb": lambda model: Lamb(decay_groups(model, 0.1), lr=3e-3, betas=(0.9, 0.95), eps=1e-6),
}


def train(model, make_optimizer, batches):
    optimizer = make_optimizer(model)
    losses, norms = [], []
    for tokens in batches:
        optimizer.zero_grad()
        loss = mean_loss(model, tokens)
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
        optimizer.step()
        losses.append(loss.item())
    return {"losses": losses, "norms": norms}


def make_untied_model():
    """The same weights, and a head of its own: the embedding's rows, each a place further."""
    model = GPT2LMHeadModel(GPT2Config(**SHAPE, tie_word_embeddings=False, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))
    state = make_model().state_dict()
    state["lm_head.weight"] = torch.roll(state["transformer.wte.weight"], 1, 0)
    model.load_state_dict(state)
    assert model.lm_head.weight is not model.transformer.wte.weight
    return model


def write_untied(tokens):
    model = make_untied_model()
    loss = mean_loss(model, tokens)
    loss.backward()
    kept = ("lm_head.weight", "transformer.wte.weight", "transformer.wpe.weight", "transformer.ln_f.weight")
    gradients = {name: p.grad.clone() for name, p in named_parameters(model).items() if name in kept}
    with torch.no_grad():
        logits = model(tokens[:1, :-1]).logits[0]
    save_file({**gradients, "loss": loss.detach(), "logits": logits.contiguous()},
              HERE / "gpt2_untied_gradients.safetensors", metadata={"torch": torch.__version__})


def main():
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(12)
    shape = (STEPS, BATCH, SHAPE["n_positions"] + 1)
    batches = torch.randint(0, SHAPE["vocab_size"], shape, generator=generator)
    write_untied(batches[0])
    model = make_model()
    weights = {name: p.detach().clone() for name, p in named_parameters(model).items()}
    loss = mean_loss(model, batches[0])
    loss.backward()
    gradients = {name: p.grad.clone() for name, p in named_parameters(model).items()}
    with torch.no_grad():
        logits = model(batches[0][:1, :-1]).logits[0]
    save_file(weights, HERE / "gpt2_weights.safetensors", metadata={"format": "pt"})
    save_file({**gradients, "logits": logits.contiguous()}, HERE / "gpt2_gradients.safetensors")
    reference = {
        "torch": torch.__version__,
        "model": OPTIONS,
        "batches": batches.tolist(),
        "loss": loss.item(),
        "training": {kind: train(make_model(), make, batches) for kind, make in OPTIMIZERS.items()},
    }
    (HERE / "gpt2_reference.json").write_text(json.dumps(reference) + "\n")
    print(loss.item(), {kind: run["losses"][-1] for kind, run in reference["training"].items()})


if __name__ == "__main__":
    main()
