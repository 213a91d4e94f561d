"""Penstock beside Hugging Face's transformers, family by family. Run by hand:

    pip install torch==2.11.0 transformers safetensors numpy
    make test                      # builds penstock, penstock_logits and penstock_start
    python tests/integration/hugging_face.py build/release [CASE ...]

For each model of CASES, everything in float32:

1. Trains it with Penstock, loads the checkpoint with from_pretrained, compares logits.
2. Saves other weights with save_pretrained, starts from them with Penstock, compares logits and the first loss.
3. Compares every gradient of that first step.
4. Takes 20 steps of AdamW with Penstock and with torch.optim on the same batches, compares the losses.

Penstock's numbers are those of the real program. It writes no gradients, but the state of AdamW after one step with
beta1 = 0 is the gradient, to the bit. The attention of transformers is the one that spells out the matrix of scores,
which shares no code with ours.
"""
import dataclasses
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy
import torch
import transformers
from safetensors.torch import load_file
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

BUILD = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "build/release")
PENSTOCK, LOGITS, START = (BUILD / name for name in ("app/penstock", "tests/penstock_logits", "tests/penstock_start"))

LOGITS_ALLOWED = 1e-4  # absolute
LOSS_ALLOWED = 1e-5  # relative, as are the rest
GRADIENT_ALLOWED = 1e-5  # of the largest element of the tensor
STEPS_ALLOWED = 1e-4

STEPS, BATCH, CONTEXT, VOCABULARY = 20, 8, 64, 256
RECIPE = f"""
[model]
layers = 3
width = 96
heads = 6
context = {CONTEXT}
vocabulary = {VOCABULARY}
[data]
path = "{{corpus}}"
split = 0
[train]
batch = {BATCH}
schedule = "constant"
lr = 1e-3
[run]
log = "none"
"""


@dataclasses.dataclass
class Case:
    name: str
    family: str
    tied: bool
    settings: dict  # of Penstock, for this model
    config: dict  # of transformers, for the same


def rotary(theta, scaling):
    """Both programs' settings of rotary positions. With the heads of 16 features that there are here, Llama 3.1's
    scaling leaves fast pairs alone, stretches slow ones and mixes at least one between."""
    if not scaling:
        return {"model.rope_theta": theta}, {"rope_type": "default", "rope_theta": theta}
    settings = {"model.rope_factor": 8, "model.rope_low": 1, "model.rope_high": 4, "model.rope_context": 32}
    return settings | {"model.rope_theta": theta}, {
        "rope_type": "llama3", "rope_theta": theta, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32}


def llama(tied, kv_heads, scaling):
    settings, parameters = rotary(500.0, scaling)
    name = f"llama{'-tied' if tied else ''}{'-grouped' if kv_heads < 6 else ''}{'-scaled' if scaling else ''}"
    return Case(
        name, "llama", tied,
        settings | {"model.kv_heads": kv_heads, "model.hidden": 160, "model.norm_epsilon": 1e-5},
        dict(num_hidden_layers=3, hidden_size=96, num_attention_heads=6, num_key_value_heads=kv_heads,
             intermediate_size=160, max_position_embeddings=CONTEXT, vocab_size=VOCABULARY, rms_norm_eps=1e-5,
             rope_parameters=parameters))


def gpt2(tied):
    return Case("gpt2-tied" if tied else "gpt2", "gpt2", tied, {},
                dict(n_layer=3, n_embd=96, n_head=6, n_positions=CONTEXT, vocab_size=VOCABULARY,
                     resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))


CASES = [gpt2(tied) for tied in (True, False)] + [
    llama(tied, kv_heads, scaling) for tied in (True, False) for kv_heads in (6, 2) for scaling in (False, True)]
MODELS = {"gpt2": (GPT2Config, GPT2LMHeadModel), "llama": (LlamaConfig, LlamaForCausalLM)}
PLAIN = {"use_cache": False, "attn_implementation": "eager"}
TOKENS = [(7 * i * i + 31 * i) % VOCABULARY for i in range(CONTEXT)]


@dataclasses.dataclass
class Found:
    difference: float
    allowed: float
    where: str = ""


def run(*arguments):
    return subprocess.run([str(a) for a in arguments], check=True, stdout=subprocess.PIPE).stdout


def mean_loss(model, tokens):
    logits = model(tokens[:, :-1]).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


class Comparison:
    """One model, with both programs; works in a folder of its own."""

    def __init__(self, case, folder):
        self.case = case
        self.folder = folder
        self.recipe = folder / "recipe.toml"
        corpus = (pathlib.Path(__file__).parent.parent.parent / "src/penstock/model").resolve()
        folder.mkdir()
        self.recipe.write_text(RECIPE.format(corpus=corpus))
        self.settings = {"model.family": case.family, "model.tied": str(case.tied).lower(), **case.settings}

    def train(self, out, **more):
        command = [PENSTOCK, "-q", "train", self.recipe, "--json", "--set", f"run.out={self.folder / out}"]
        for key, value in {**self.settings, **{k.replace("__", "."): v for k, v in more.items()}}.items():
            command += ["--set", f"{key}={value}"]
        return json.loads(run(*command))

    def their_model(self):
        """Weights far from their start: norms that are not 1 show more mistakes."""
        config, model = MODELS[self.case.family]
        torch.manual_seed(3)
        made = model(config(**self.case.config, **PLAIN, tie_word_embeddings=self.case.tied, bos_token_id=0,
                            eos_token_id=0))
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
        return made

    def logits_differ(self, out, model):
        """By how much, between the checkpoint in `out` and a model of theirs."""
        ours = torch.tensor(json.loads(run(LOGITS, self.folder / out, *TOKENS)))
        with torch.no_grad():
            theirs = model(torch.tensor([TOKENS])).logits[0]
        return (ours - theirs).abs().max().item()

    def batches(self):
        """What penstock train will read, step by step."""
        settings = [f"{key}={value}" for key, value in self.settings.items()]
        run(START, self.recipe, STEPS, self.folder, *settings)
        tokens = numpy.fromfile(self.folder / "batches.bin", dtype=numpy.int64)
        return torch.from_numpy(tokens).view(STEPS, BATCH, CONTEXT + 1)

    def run(self):
        found = {"logits of a Penstock checkpoint": self.to_transformers()}
        model = self.their_model()
        model.save_pretrained(self.folder / "theirs")
        start = {"model__weights": self.folder / "theirs"}
        batches = self.batches()
        found |= self.first_step(model, batches[0], start)
        found["20 steps of AdamW"] = self.steps(model, batches, start)
        return found

    def to_transformers(self):
        dropout = {"model__dropout": 0.1} if self.case.family == "gpt2" else {}
        losses = self.train("ours", train__steps=30, **dropout)["losses"]
        assert losses[-1] < losses[0] - 1, losses
        model = MODELS[self.case.family][1].from_pretrained(self.folder / "ours/latest", **PLAIN).eval()
        assert (model.get_output_embeddings().weight is model.get_input_embeddings().weight) == self.case.tied
        return Found(self.logits_differ("ours", model), LOGITS_ALLOWED)

    def first_step(self, model, tokens, start):
        """Weights stay, for the rate is 0; the mean gradient after it is the gradient."""
        first = self.train("first", **start, train__steps=1, train__lr=0, train__beta1=0, train__clip=0)
        checkpoint = self.folder / "first/latest"
        loss = mean_loss(model, tokens)
        loss.backward()
        gradients = dict(model.named_parameters())  # a tied one appears once
        state = load_file(checkpoint / "optimizer.safetensors")
        ours = {name.removesuffix(".exp_avg"): tensor for name, tensor in state.items() if name.endswith(".exp_avg")}
        assert ours.keys() == gradients.keys(), ours.keys() ^ gradients.keys()
        assert all(tensor.any() for tensor in ours.values())
        differences = {name: ((ours[name] - p.grad).abs().max() / p.grad.abs().max()).item()
                       for name, p in gradients.items()}
        worst = max(differences, key=differences.get)
        return {
            "logits of their weights": Found(self.logits_differ("first", model), LOGITS_ALLOWED),
            "first loss": Found(abs(first["losses"][0] / loss.item() - 1), LOSS_ALLOWED),
            f"every one of {len(ours)} gradients": Found(differences[worst], GRADIENT_ALLOWED, worst),
        }

    def steps(self, model, batches, start):
        weight_decay, lr, betas, epsilon, clip = 0.1, 3e-3, (0.9, 0.95), 1e-8, 1.0
        ours = self.train("steps", **start, train__steps=STEPS, train__lr=lr, train__weight_decay=weight_decay,
                          train__beta1=betas[0], train__beta2=betas[1], train__epsilon=epsilon, train__clip=clip)
        # Biases and norms are not decayed.
        parameters = list(model.parameters())
        groups = [{"params": [p for p in parameters if p.dim() > 1], "weight_decay": weight_decay},
                  {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, lr=lr, betas=betas, eps=epsilon)
        theirs = []
        for tokens in batches:
            optimizer.zero_grad()
            loss = mean_loss(model, tokens)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            theirs.append(loss.item())
        assert theirs[-1] < theirs[0] - 1, theirs
        return Found(max(abs(a / b - 1) for a, b in zip(ours["losses"], theirs, strict=True)), STEPS_ALLOWED)


def main():
    wanted = sys.argv[2:]
    unknown = set(wanted) - {case.name for case in CASES}
    assert not unknown, f"no case {unknown}; there are {[case.name for case in CASES]}"
    print(f"torch {torch.__version__}, transformers {transformers.__version__}")
    transformers.utils.logging.disable_progress_bar()
    is_good = True
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES:
            if wanted and case.name not in wanted:
                continue
            print(case.name)
            for what, found in Comparison(case, pathlib.Path(folder) / case.name).run().items():
                is_within = found.difference < found.allowed
                is_good = is_good and is_within
                print(f"  {what:32} {found.difference:.2e}, {found.allowed:.0e} allowed"
                      f"{'' if is_within else ': TOO MUCH'} {found.where}", flush=True)
    print("ok" if is_good else "some differ too much")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
