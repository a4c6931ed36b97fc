"""Random Medusa heads on disk, for a tiny checkpoint, in the forms of both publishers; and what torch says of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from support.tiny_models import load_eager
from tensorwright.models.medusa import MedusaHeads

FORMS = ("authors", "vllm")


def make_medusa(
    path: Path, target: Path, *, heads: int = 3, blocks: int = 1, bias: bool = True, form: str = "authors",
    shared: bool = False, seed: int = 0, prefix: str = "",
) -> Path:  # fmt: skip
    """Writes heads for the checkpoint `target`. shared: without output matrices. Returns the path."""
    theirs = json.loads((target / "config.json").read_text(encoding="utf-8"))
    hidden, vocab = theirs["hidden_size"], theirs["vocab_size"]
    path.mkdir(parents=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = MedusaHeads(hidden, vocab, heads, (bias,) * blocks)
        state = {name: torch.randn_like(tensor) * 0.2 for name, tensor in made.state_dict().items()}
    stored = {}
    for name, tensor in state.items():
        _, head, part, *rest = name.split(".")
        if part == "lm_head" and shared:
            continue
        if form == "vllm":
            stored[f"lm_heads.{head}.weight" if part == "lm_head" else f"blocks.{head}.layers.{'.'.join(rest)}"] = (
                tensor
            )
        elif part == "lm_head":
            stored[f"{head}.{blocks}.weight"] = tensor
        else:
            stored[f"{head}.{rest[0]}.linear.{rest[1]}"] = tensor
    config: dict[str, Any] = {"medusa_num_heads": heads, "medusa_num_layers": blocks}
    file = "medusa_lm_head.safetensors"
    if form == "vllm":
        sizes = {"hidden_size": hidden, "vocab_size": vocab, "truncated_vocab_size": vocab}
        config = {
            "model_type": "medusa",
            "num_heads": heads,
            "num_hidden_layers": blocks,
            "medusa_fc_bias": bias,
            **sizes,
        }
        file = "model.safetensors"
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file({prefix + name: tensor for name, tensor in stored.items()}, path / file)
    torch.save(state, path / "state.of_the_test")
    return path


class TorchMedusa:
    """The heads of make_medusa in torch, beside their target in transformers, both in float32."""

    def __init__(self, path: Path, target: Path):
        self.target = load_eager(target)
        state = torch.load(path / "state.of_the_test")
        names = [name for name in state if name.startswith("heads.0.blocks.")]
        biased = tuple(f"heads.0.blocks.{i}.bias" in names for i in range(sum(n.endswith("weight") for n in names)))
        count = len({name.split(".")[1] for name in state})
        vocab, hidden = state["heads.0.lm_head.weight"].shape
        self.heads = MedusaHeads(hidden, vocab, count, biased)
        stored = next(path.glob("*.safetensors")).read_bytes()
        if b"lm_head" not in stored and b'.1.weight"' not in stored and b'.2.weight"' not in stored:
            ours = self.target.get_output_embeddings().weight.detach()
            state |= {name: ours for name in state if name.endswith("lm_head.weight")}
        self.heads.load_state_dict(state)

    @torch.no_grad()
    def feature(self, tokens: list[int]) -> torch.Tensor:
        """Returns the target's last hidden states [tokens, width], behind its norm."""
        return self.target.get_decoder()(torch.tensor([tokens]), use_cache=False).last_hidden_state[0]

    @torch.no_grad()
    def say(self, next_tokens: list[int], features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the logits of all heads [tokens, heads * vocab], and the features."""
        positions = torch.arange(len(next_tokens))[None]
        logits, own = self.heads(torch.tensor([next_tokens]), positions, features[None])
        return logits[0], own[0]
