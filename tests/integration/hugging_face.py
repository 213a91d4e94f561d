"""Checkpoints in both directions between Penstock and Hugging Face's transformers. Run by hand:

    pip install torch==2.11.0 transformers
    make test                      # builds penstock and penstock_logits
    python tests/integration/hugging_face.py build/release

1. Trains a small GPT-2 with Penstock, loads the checkpoint with from_pretrained, compares logits.
2. Saves a model with save_pretrained, trains on from it with Penstock, compares the first loss.

Both with the head that is the token embedding, and with one of its own.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel

BUILD = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "build/release")
PENSTOCK, LOGITS = BUILD / "app/penstock", BUILD / "tests/penstock_logits"

RECIPE = """
[model]
layers = 3
width = 96
heads = 6
context = 64
vocabulary = 256
dropout = 0.1
[data]
path = "{corpus}"
split = 0
[train]
steps = 30
batch = 8
lr = 1e-3
"""


def run(*arguments):
    return subprocess.run([str(a) for a in arguments], check=True, stdout=subprocess.PIPE).stdout


def train(recipe, out, *settings):
    command = [PENSTOCK, "-q", "train", recipe, "--json", "--set", f"run.out={out}"]
    for setting in settings:
        command += ["--set", setting]
    return json.loads(run(*command))


def check(recipe, folder, tied):
    head = f"model.tied={str(tied).lower()}"
    print(head)
    train(recipe, folder / "run", head)
    model = GPT2LMHeadModel.from_pretrained(folder / "run/latest").eval()
    assert (model.lm_head.weight is model.transformer.wte.weight) == tied
    tokens = [(7 * i * i + 31 * i) % 256 for i in range(64)]
    ours = torch.tensor(json.loads(run(LOGITS, folder / "run", *tokens)))
    with torch.no_grad():
        theirs = model(torch.tensor([tokens])).logits[0]
    difference = (ours - theirs).abs().max().item()
    print(f"penstock -> transformers: largest difference of logits {difference:.2e}")
    assert difference < 1e-4

    torch.manual_seed(3)
    shape = GPT2Config(n_layer=3, n_embd=96, n_head=6, n_positions=64, vocab_size=256, bos_token_id=0, eos_token_id=0,
                       resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, tie_word_embeddings=tied)
    other = GPT2LMHeadModel(shape).eval()
    other.save_pretrained(folder / "theirs")
    start = (head, f"model.weights={folder / 'theirs'}", "model.dropout=0")
    # A step of lr 0 writes the imported weights back; the loss before it is that of the import.
    first = train(recipe, folder / "imported", *start, "train.steps=1", "train.lr=0")
    again = torch.tensor(json.loads(run(LOGITS, folder / "imported", *tokens)))
    with torch.no_grad():
        theirs = other(torch.tensor([tokens])).logits[0]
    difference = (again - theirs).abs().max().item()
    print(f"transformers -> penstock: largest difference of logits {difference:.2e}")
    assert difference < 1e-4
    longer = train(recipe, folder / "longer", *start)
    print(f"trained on from it: loss {longer['losses'][0]:.4f} -> {longer['losses'][-1]:.4f}")
    assert longer["losses"][0] == first["losses"][0]
    assert longer["losses"][-1] < longer["losses"][0] - 1


def main():
    folder = pathlib.Path(tempfile.mkdtemp())
    corpus = (pathlib.Path(__file__).parent.parent.parent / "src/penstock/model").resolve()
    recipe = folder / "recipe.toml"
    recipe.write_text(RECIPE.format(corpus=corpus))
    for tied in (True, False):
        check(recipe, folder / ("tied" if tied else "untied"), tied)
    print("ok")


if __name__ == "__main__":
    main()
