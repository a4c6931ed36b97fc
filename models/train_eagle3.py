"""Trains an EAGLE-3 head for a target, for `build-engine TARGET OUT --heads HEAD` and `--speculative heads`.

    python -m tensorwright.models.train_eagle3 --target models/pico --engine out/pico --minutes 30 --out out/pico-eagle3

The head learns on answers of the engine and on pieces of the Python standard library: at each position the target's
probabilities of the token after the next, from the target's hidden states, and, as in the paper's training-time test,
from features of its own for the tokens behind (Li et al. 2025, section 3.1; models/eagle3.py). It prints how often its
likeliest token is the target's at each place of a proposal, on text that it did not learn from. Needs torch and
transformers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import click
import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from tensorwright.models.distill import gather
from tensorwright.models.eagle3 import LAYER_IDS, Eagle3Features, Eagle3Head, Eagle3Options
from tensorwright.models.heads_checkpoint import ARCHITECTURES
from tensorwright.models.train_pico import Recipe, encode, read_texts, train_for

PLACES = 3
"""The places of a proposal that are learned."""
FADES = 0.8
"""What the error of a place counts beside that of the place before."""
KEPT_KEYS = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "vocab_size", "max_position_embeddings", "rms_norm_eps", "rope_parameters", "hidden_act", "attention_bias",
    "mlp_bias",
)  # fmt: skip
"""What config.json says of the layer."""
TESTED = 32
"""Windows that the head is measured on."""


class Trained(torch.nn.Module):
    """The parts that are learned. The embedding is the target's and stays as it is. The layer begins as the target's
    last one, which reads the target's last hidden state again."""

    def __init__(self, target: LlamaForCausalLM, draft_tokens: torch.Tensor):
        super().__init__()
        source = target.config
        config = LlamaConfig(**{**source.to_dict(), "num_hidden_layers": 1})
        layers = (1, source.num_hidden_layers // 2, source.num_hidden_layers - 1)
        options = Eagle3Options(len(draft_tokens), source.hidden_size, layers)
        self.features = Eagle3Features(config, options)
        self.head = Eagle3Head(config, options)
        self.head.embed_tokens = target.model.embed_tokens
        self.head.embed_tokens.weight.requires_grad_(False)
        with torch.no_grad():
            last, theirs = target.model.layers[-1], self.head.midlayer
            theirs.mlp.load_state_dict(last.mlp.state_dict())
            theirs.post_attention_layernorm.load_state_dict(last.post_attention_layernorm.state_dict())
            theirs.hidden_norm.load_state_dict(last.input_layernorm.state_dict())
            theirs.self_attn.o_proj.load_state_dict(last.self_attn.o_proj.state_dict())
            for name in ("q_proj", "k_proj", "v_proj"):
                wide = getattr(theirs.self_attn, name).weight  # of the embedding, then of the feature
                wide[:, source.hidden_size :] = getattr(last.self_attn, name).weight
            self.head.norm.load_state_dict(target.model.norm.state_dict())
            self.head.lm_head.weight.copy_(target.lm_head.weight[draft_tokens])
            self.features.fc.weight[:, -source.hidden_size :] += torch.eye(source.hidden_size)
        self.draft_tokens = draft_tokens

    @property
    def options(self) -> Eagle3Options:
        return self.head.options


def shifted(tokens: torch.Tensor, by: int) -> torch.Tensor:
    """Returns [B, S] moved to the left, with zeros behind."""
    return torch.cat([tokens[:, by:], tokens.new_zeros(len(tokens), by)], 1)


def places(model: Trained, target: LlamaForCausalLM, tokens: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yields, for each place of a proposal, the head's logits [B, S, draft_vocab], the target's logits [B, S, V] for
    the same token, and which of [S] are there.

    A later place reads features of the head's own. As in the engine, keys and values of the text before are those of
    the target's features; here a position attends to the head's own features of its place instead, which is the same
    for the position itself and close to it before.
    """
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        said = target(tokens, output_hidden_states=True)
        hidden = [said.hidden_states[layer].float() for layer in model.options.layers_of(len(target.model.layers))]
        logits = said.logits.float()
    length = tokens.shape[1]
    positions = torch.arange(length)[None]
    with torch.autocast("cpu", torch.bfloat16):
        features = model.features(hidden)
        for place in range(PLACES):
            ours, features = model.head(shifted(tokens, place + 1), positions, features)
            yield ours.float(), torch.roll(logits, -place - 1, 1), torch.arange(length) < length - place - 1


def loss_of(model: Trained, target: LlamaForCausalLM, tokens: torch.Tensor) -> torch.Tensor:
    """Returns the mean over places of the cross-entropy of the head against the target's probabilities, in nats. What
    the target gives to tokens that the head lacks does not count."""
    total = torch.zeros(())
    for place, (ours, theirs, there) in enumerate(places(model, target, tokens)):
        wanted = torch.softmax(theirs[:, there], -1)[..., model.draft_tokens]
        total = total - FADES**place * (wanted * torch.log_softmax(ours[:, there], -1)).sum(-1).mean()
    return total / sum(FADES**place for place in range(PLACES))


@torch.no_grad()
def agreement(model: Trained, target: LlamaForCausalLM, windows: torch.Tensor) -> list[float]:
    """Returns, for each place of a proposal, how often the head's likeliest token is the target's, given that those
    before were."""
    right, tried = [0] * PLACES, [0] * PLACES
    for window in windows.split(8):
        good = torch.ones(window.shape, dtype=torch.bool)
        for place, (ours, theirs, there) in enumerate(places(model, target, window)):
            good &= there
            tried[place] += int(good.sum())
            good &= model.draft_tokens[ours.argmax(-1)] == theirs.argmax(-1)
            right[place] += int(good.sum())
    return [r / max(t, 1) for r, t in zip(right, tried, strict=True)]


def read_training(
    target: Path, engine: Path | None, out: Path, answers: int, files: int | None, seed: int
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Returns the tokens that heads learn on, the library's and those of the engine's answers, which are kept in `out`,
    and the tokens that they are measured on."""
    tokenizer = Tokenizer.from_file(str(target / "tokenizer.json"))
    training, held_out = (encode(tokenizer, texts) for texts in read_texts(files))
    texts = [training]
    if engine is not None:
        out.mkdir(parents=True, exist_ok=True)
        said = gather(engine, training.numpy(), answers, out / "answers.npz", seed).tokens
        texts.append(torch.from_numpy(said[said >= 0].astype(np.int64)))
    return texts, held_out


def tested_windows(held_out: torch.Tensor, recipe: Recipe) -> torch.Tensor:
    """Returns the first windows [TESTED or fewer, sequence]."""
    windows = min(TESTED, len(held_out) // recipe.sequence)
    return held_out[: windows * recipe.sequence].view(windows, recipe.sequence)


def windows_of(texts: list[torch.Tensor], recipe: Recipe) -> Iterator[torch.Tensor]:
    """Yields windows [batch, sequence], of each text in turn."""
    generator = torch.Generator().manual_seed(recipe.seed)
    while True:
        for text in texts:
            begins = torch.randint(len(text) - recipe.sequence, (recipe.batch,), generator=generator)
            yield torch.stack([text[b : b + recipe.sequence] for b in begins.tolist()])


def likely_tokens(text: torch.Tensor, vocab: int, count: int) -> torch.Tensor:
    """Returns the `count` tokens that `text` has most often, ascending, int64 [count]."""
    often = torch.bincount(text, minlength=vocab)
    return often.argsort(descending=True, stable=True)[:count].sort().values


def save(model: Trained, target: LlamaForCausalLM, out: Path) -> None:
    """Writes the checkpoint as the authors of EAGLE-3 do, without the embedding, which is the target's."""
    out.mkdir(parents=True, exist_ok=True)
    state = {**model.head.state_dict(), **model.features.state_dict()}
    state = {name: value.bfloat16().contiguous() for name, value in state.items() if name != "embed_tokens.weight"}
    vocab = target.config.vocab_size
    state["d2t"] = model.draft_tokens - torch.arange(len(model.draft_tokens))
    state["t2d"] = torch.isin(torch.arange(vocab), model.draft_tokens)
    save_file(state, out / "model.safetensors")
    whole = model.head.config.to_dict()
    config = {key: whole[key] for key in KEPT_KEYS} | {"architectures": [ARCHITECTURES[0]], "model_type": "llama"}
    config |= {"draft_vocab_size": model.options.draft_vocab, LAYER_IDS: list(model.options.layers or ())}
    config |= {"dtype": "bfloat16", "tie_word_embeddings": False}
    (out / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


@click.command(help=__doc__)
@click.option("--target", type=click.Path(exists=True, path_type=Path), required=True, help="Checkpoint of the target.")
@click.option(
    "--engine", type=click.Path(exists=True, path_type=Path), help="Its engine; without, answers are left out."
)
@click.option("--minutes", type=click.FloatRange(min=0, min_open=True), required=True, help="Training time.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Checkpoint directory to write.")
@click.option("--answers", type=click.IntRange(min=64), default=1024, show_default=True)
@click.option("--draft-vocab", type=click.IntRange(min=64), default=2048, show_default=True)
@click.option("--files", type=click.IntRange(min=50), help="Read only the first so many files of the library.")
@click.option("--peak-rate", default=1e-3, show_default=True)
@click.option("--seed", default=0, show_default=True)
def main(
    target: Path, engine: Path | None, minutes: float, out: Path, answers: int, draft_vocab: int, files: int | None,
    peak_rate: float, seed: int,
) -> None:  # fmt: skip
    texts, held_out = read_training(target, engine, out, answers, files, seed)
    model = LlamaForCausalLM.from_pretrained(target, dtype=torch.float32)
    model.requires_grad_(False)
    trained = Trained(model, likely_tokens(torch.cat(texts), model.config.vocab_size, draft_vocab))
    recipe = Recipe(seed=seed, peak_rate=peak_rate)
    tested = tested_windows(held_out, recipe)
    steps = train_for(trained, windows_of(texts, recipe), partial(loss_of, trained, model), recipe, minutes * 60)
    save(trained, model, out)
    shares = ", ".join(f"{share:.3f}" for share in agreement(trained, model, tested))
    click.echo(f"{steps} steps; the likeliest token was the target's, at each place of a proposal: {shares}")


if __name__ == "__main__":
    main()
