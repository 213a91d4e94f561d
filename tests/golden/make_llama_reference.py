"""Writes the reference numbers for Llama of tests/model/reference_test.cpp, computed by PyTorch.

    pip install torch==2.11.0 transformers safetensors numpy
    python tests/golden/make_llama_reference.py

The models are Hugging Face's, with the attention that spells out its matrix of scores; they share no code with
Penstock's. Everything is float32 on the CPU.
"""
import json

import torch
import transformers
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from make_gpt2_reference import BATCH, HERE, OPTIMIZERS, STEPS, mean_loss, named_parameters, train

# By the name of their files: the options of Penstock's recipes. The first has all that is special of Llama: of the
# three pairs of a head's features one is not stretched, one is mixed and one is stretched.
MODELS = {
    "llama": {
        "layers": 2, "width": 24, "heads": 4, "kv_heads": 2, "hidden": 40, "context": 24, "vocabulary": 53,
        "tied": False, "norm_epsilon": 1e-5, "rope_theta": 100.0, "rope_factor": 4.0, "rope_low": 0.5, "rope_high": 2.0,
        "rope_context": 20},
    "llama_tied": {
        "layers": 1, "width": 24, "heads": 4, "kv_heads": 4, "hidden": 40, "context": 24, "vocabulary": 53,
        "tied": True, "norm_epsilon": 1e-3, "rope_theta": 10000.0},
}
TRAINED = {"llama": ("adamw",)}


def rope_parameters(options):
    theta = {"rope_theta": options["rope_theta"]}
    if "rope_factor" not in options:
        return {"rope_type": "default", **theta}
    return {"rope_type": "llama3", **theta, "factor": options["rope_factor"], "low_freq_factor": options["rope_low"],
            "high_freq_factor": options["rope_high"], "original_max_position_embeddings": options["rope_context"]}


def make_model(options):
    torch.manual_seed(11)
    model = LlamaForCausalLM(LlamaConfig(
        num_hidden_layers=options["layers"], hidden_size=options["width"], num_attention_heads=options["heads"],
        num_key_value_heads=options["kv_heads"], intermediate_size=options["hidden"],
        max_position_embeddings=options["context"], vocab_size=options["vocabulary"],
        rms_norm_eps=options["norm_epsilon"], rope_parameters=rope_parameters(options),
        tie_word_embeddings=options["tied"], attn_implementation="eager", use_cache=False))
    with torch.no_grad():
        # Weights far from their start, so that attention looks at some tokens more than at others and norms are not 1.
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def write(name, options):
    kinds = TRAINED.get(name, ())
    generator = torch.Generator().manual_seed(12)
    shape = (STEPS if kinds else 1, BATCH, options["context"] + 1)
    batches = torch.randint(0, options["vocabulary"], shape, generator=generator)
    model = make_model(options)
    weights = {name: p.detach().clone() for name, p in named_parameters(model).items()}
    loss = mean_loss(model, batches[0])
    loss.backward()
    gradients = {name: p.grad.clone() for name, p in named_parameters(model).items()}
    with torch.no_grad():
        logits = model(batches[0][:1, :-1]).logits[0]
    save_file(weights, HERE / f"{name}_weights.safetensors", metadata={"format": "pt"})
    save_file({**gradients, "logits": logits.contiguous()}, HERE / f"{name}_gradients.safetensors")
    reference = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "model": {"family": "llama", **options},
        "batches": batches.tolist(),
        "loss": loss.item(),
        "training": {kind: train(make_model(options), OPTIMIZERS[kind], batches) for kind in kinds},
    }
    (HERE / f"{name}_reference.json").write_text(json.dumps(reference) + "\n")
    print(name, loss.item(), {kind: run["losses"][-1] for kind, run in reference["training"].items()})


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name, options in MODELS.items():
        write(name, options)
