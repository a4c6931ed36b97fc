"""Tiny checkpoints with a layer that predicts further tokens, as DeepSeek-V3 stores it, and what torch says of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from support.tiny_models import class_of, load_eager, make_variant


def make_mtp(path: Path, variant: str, *, copies: bool = False, seed: int = 0, **config: Any) -> Path:
    """Writes a checkpoint of two layers and one that predicts. copies: it stores the embedding and the output matrix
    once more, as DeepSeek-V3 does. Returns the path."""
    make_variant(path, variant, seed=seed, num_hidden_layers=3, **config)
    whole = json.loads((path / "config.json").read_text(encoding="utf-8"))
    for key, value in list(whole.items()):
        if isinstance(value, list) and len(value) == 3:
            whole[key] = value[:2]
    whole |= {"num_hidden_layers": 2, "num_nextn_predict_layers": 1}
    (path / "config.json").write_text(json.dumps(whole), encoding="utf-8")
    state = load_file(path / "model.safetensors")
    generator = torch.Generator().manual_seed(seed + 1)
    hidden = whole["hidden_size"]

    def noise(*shape: int) -> torch.Tensor:
        return 0.3 * torch.randn(*shape, generator=generator)

    layer = "model.layers.2."
    state |= {
        f"{layer}enorm.weight": 1 + noise(hidden),
        f"{layer}hnorm.weight": 1 + noise(hidden),
        f"{layer}eh_proj.weight": noise(hidden, 2 * hidden),
        f"{layer}shared_head.norm.weight": 1 + noise(hidden),
    }
    if copies:
        state[f"{layer}shared_head.head.weight"] = state["lm_head.weight"].clone()
        state[f"{layer}embed_tokens.weight"] = state["model.embed_tokens.weight"].clone()
    save_file(state, path / "model.safetensors", metadata={"format": "pt"})
    return path


class TorchMtp:
    """The model in transformers, and its further layer made by hand of a model with one layer more."""

    def __init__(self, path: Path):
        whole = json.loads((path / "config.json").read_text(encoding="utf-8"))
        state = load_file(path / "model.safetensors")
        self.own = {
            name.removeprefix("model.layers.2."): tensor for name, tensor in state.items() if "layers.2." in name
        }
        self.target = load_eager(path)
        longer = class_of(path).from_pretrained(
            path, **_longer(whole), attn_implementation="eager", dtype=torch.float32
        )
        self.model = longer.eval()
        self.layer = self.model.model.layers[2]
        self.model.model.layers = torch.nn.ModuleList([self.layer])
        self.model.config.num_hidden_layers = 1
        self.model.model.norm.weight.data = self.own["shared_head.norm.weight"]

    @torch.no_grad()
    def feature(self, tokens: list[int]) -> torch.Tensor:
        return self.target.model(torch.tensor([tokens]), use_cache=False).last_hidden_state[0]

    @torch.no_grad()
    def say(self, next_tokens: list[int], features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        model = self.model
        norm = model.model.norm

        def normed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            return weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon)

        embedded = normed(model.model.embed_tokens(torch.tensor([next_tokens])), self.own["enorm.weight"])
        both = torch.cat([embedded, normed(features[None], self.own["hnorm.weight"])], -1)
        hidden = model.model(inputs_embeds=both @ self.own["eh_proj.weight"].T, use_cache=False).last_hidden_state
        return model.lm_head(hidden)[0], hidden[0]


def _longer(whole: dict[str, Any]) -> dict[str, Any]:
    lists = {key: [*value, value[-1]] for key, value in whole.items() if isinstance(value, list) and len(value) == 2}
    return {"num_hidden_layers": 3, **{key: value for key, value in lists.items() if key.endswith("types")}}
