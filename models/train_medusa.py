"""Trains Medusa heads for a target, for `build-engine TARGET OUT --heads HEADS` and `--speculative heads`.

    python -m tensorwright.models.train_medusa --target models/pico --engine out/pico --minutes 10 --out out/pico-medusa

The heads learn on answers of the engine and on pieces of the Python standard library: head k, at each position, the
target's probabilities of the token k places behind the next one (Cai et al. 2024, sections 2.1 and 2.2, with the
target's own probabilities in place of the text's tokens; models/medusa.py). The target stays as it is, and so does its
output matrix, which all heads use. It prints how often each head's likeliest token is the target's, given that those
before were, on text that it did not learn from. Needs torch and transformers.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import click
import torch
from safetensors.torch import save_file
from transformers import LlamaForCausalLM

from tensorwright.models.heads_checkpoint import MEDUSA_WEIGHTS
from tensorwright.models.medusa import MedusaHeads
from tensorwright.models.train_eagle3 import read_training, tested_windows, windows_of
from tensorwright.models.train_pico import Recipe, train_for

FADES = 0.8
"""What the error of a head counts beside that of the head before (the paper's section 2.2.1)."""


def made_for(target: LlamaForCausalLM, heads: int) -> MedusaHeads:
    """Returns heads of one residual block that begin as the target's own output: their blocks add nothing yet."""
    config = target.config
    made = MedusaHeads(config.hidden_size, config.vocab_size, heads, (True,))
    for head in made.each():
        for linear in head.linears():
            torch.nn.init.zeros_(linear.weight)
            torch.nn.init.zeros_(linear.bias)
        head.lm_head.weight = target.lm_head.weight
    return made


def said(heads: MedusaHeads, target: LlamaForCausalLM, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the heads' logits [K, B, S, V], and the target's [K, B, S, V] for the same tokens. The last k positions
    of head k have no such token."""
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        hidden = target.model(tokens).last_hidden_state.float()
        logits = target.lm_head(hidden).float()
    with torch.autocast("cpu", torch.bfloat16):
        ours = torch.stack([head(hidden).float() for head in heads.heads])
    return ours, torch.stack([torch.roll(logits, -place - 1, 1) for place in range(len(heads.heads))])


def loss_of(heads: MedusaHeads, target: LlamaForCausalLM, tokens: torch.Tensor) -> torch.Tensor:
    """Returns the mean over heads of the cross-entropy against the target's probabilities, in nats."""
    ours, theirs = said(heads, target, tokens)
    total, weights = torch.zeros(()), [FADES**place for place in range(len(ours))]
    for place, weight in enumerate(weights):
        there = slice(0, tokens.shape[1] - place - 1)
        wanted = torch.softmax(theirs[place, :, there], -1)
        total = total - weight * (wanted * torch.log_softmax(ours[place, :, there], -1)).sum(-1).mean()
    return total / sum(weights)


@torch.no_grad()
def agreement(heads: MedusaHeads, target: LlamaForCausalLM, windows: torch.Tensor) -> list[float]:
    """Returns, for each head, how often its likeliest token is the target's, given that those before were."""
    right, tried = [0] * len(heads.heads), [0] * len(heads.heads)
    for window in windows.split(8):
        good = torch.ones(window.shape, dtype=torch.bool)
        ours, theirs = said(heads, target, window)
        for place in range(len(ours)):
            good &= torch.arange(window.shape[1]) < window.shape[1] - place - 1
            tried[place] += int(good.sum())
            good &= ours[place].argmax(-1) == theirs[place].argmax(-1)
            right[place] += int(good.sum())
    return [r / max(t, 1) for r, t in zip(right, tried, strict=True)]


def save(heads: MedusaHeads, out: Path) -> None:
    """Writes the checkpoint as the authors do, without output matrices, which are the target's."""
    out.mkdir(parents=True, exist_ok=True)
    state = {}
    for place, head in enumerate(heads.each()):
        for block, linear in enumerate(head.linears()):
            state[f"{place}.{block}.linear.weight"] = linear.weight.detach().bfloat16().contiguous()
            state[f"{place}.{block}.linear.bias"] = linear.bias.detach().bfloat16().contiguous()
    save_file(state, out / MEDUSA_WEIGHTS)
    config = {"medusa_num_heads": len(heads.heads), "medusa_num_layers": len(heads.each()[0].linears())}
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


@click.command(help=__doc__)
@click.option("--target", type=click.Path(exists=True, path_type=Path), required=True, help="Checkpoint of the target.")
@click.option(
    "--engine", type=click.Path(exists=True, path_type=Path), help="Its engine; without, answers are left out."
)
@click.option("--minutes", type=click.FloatRange(min=0, min_open=True), required=True, help="Training time.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Checkpoint directory to write.")
@click.option("--heads", type=click.IntRange(2, 16), default=3, show_default=True)
@click.option("--answers", type=click.IntRange(min=64), default=1024, show_default=True)
@click.option("--files", type=click.IntRange(min=50), help="Read only the first so many files of the library.")
@click.option("--peak-rate", default=1e-3, show_default=True)
@click.option("--seed", default=0, show_default=True)
def main(
    target: Path, engine: Path | None, minutes: float, out: Path, heads: int, answers: int, files: int | None,
    peak_rate: float, seed: int,
) -> None:  # fmt: skip
    texts, held_out = read_training(target, engine, out, answers, files, seed)
    model = LlamaForCausalLM.from_pretrained(target, dtype=torch.float32)
    model.requires_grad_(False)
    trained = made_for(model, heads)
    recipe = Recipe(seed=seed, peak_rate=peak_rate)
    tested = tested_windows(held_out, recipe)
    steps = train_for(trained, windows_of(texts, recipe), partial(loss_of, trained, model), recipe, minutes * 60)
    save(trained, out)
    shares = ", ".join(f"{share:.3f}" for share in agreement(trained, model, tested))
    click.echo(f"{steps} steps; the likeliest token was the target's, at each place of a proposal: {shares}")


if __name__ == "__main__":
    main()
