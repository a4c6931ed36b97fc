"""Random EAGLE-3 heads on disk, for a tiny checkpoint, in the forms of both publishers; and what torch says of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from support.tiny_models import load_eager
from tensorwright.models.eagle3 import Eagle3Features, Eagle3Head, read_options


def make_heads(
    path: Path, target: Path, *, draft_vocab: int | None = None, speculators: bool = False, seed: int = 0, **config: Any
) -> Path:
    """Writes heads for the checkpoint `target`. speculators: in the form of that library, with its own embedding.
    config: entries of config.json, of the layer or beside it. Returns the path."""
    theirs = json.loads((target / "config.json").read_text(encoding="utf-8"))
    theirs = theirs.get("text_config", theirs)
    vocab = theirs["vocab_size"]
    layer = {
        "model_type": "llama", "hidden_size": theirs["hidden_size"], "intermediate_size": 48, "num_hidden_layers": 1,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": vocab,
        "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
    }  # fmt: skip
    beside = ("norm_before_residual", "norm_before_fc", "norm_output", "eagle_aux_hidden_state_layer_ids")
    layer |= {key: value for key, value in config.items() if key not in beside}
    more = {key: value for key, value in config.items() if key in beside} | {"draft_vocab_size": draft_vocab or vocab}
    if speculators:
        whole = {"speculators_model_type": "eagle3", "transformer_layer_config": layer, **more}
    else:
        whole = {"architectures": ["LlamaForCausalLMEagle3"], **layer, **more}
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(whole), encoding="utf-8")
    read, options = read_options(whole)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head, features = Eagle3Head(read, options), Eagle3Features(read, options)
        with torch.no_grad():
            for parameter in (*head.parameters(), *features.parameters()):
                parameter.copy_(torch.randn_like(parameter) * (0.2 if parameter.dim() > 1 else 0.3))
                if parameter.dim() == 1:
                    parameter.add_(1)
        chosen = torch.randperm(vocab)[: options.draft_vocab].sort().values
    state = {**head.state_dict(), **features.state_dict()}
    if speculators:
        state = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in state.items()}
    else:
        del state["embed_tokens.weight"]
    if draft_vocab is not None:
        state |= {"d2t": chosen - torch.arange(draft_vocab), "t2d": torch.isin(torch.arange(vocab), chosen)}
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, path / "model.safetensors")
    return path


class TorchHeads:
    """The heads of a checkpoint in torch, beside their target in transformers, both in float32."""

    def __init__(self, path: Path, target: Path):
        self.target = load_eager(target)
        config, self.options = read_options(json.loads((path / "config.json").read_text(encoding="utf-8")))
        self.head, self.features = Eagle3Head(config, self.options), Eagle3Features(config, self.options)
        state = {name.replace("layers.0.", "midlayer."): t for name, t in load_file(path / "model.safetensors").items()}
        state.setdefault("embed_tokens.weight", self.target.get_input_embeddings().weight.detach())
        self.head.load_state_dict({name: state[name] for name in self.head.state_dict()})
        self.features.load_state_dict({name: state[name] for name in self.features.state_dict()})

    @torch.no_grad()
    def feature(self, tokens: list[int]) -> torch.Tensor:
        """Returns the features [tokens, width] of the target's hidden states."""
        last: list[Any] = []  # the output of the last layer, which transformers gives behind the norm alone
        layers = self.target.get_decoder().layers
        with layers[-1].register_forward_hook(lambda module, given, result: last.append(result)):
            said = self.target(torch.tensor([tokens]), output_hidden_states=True, use_cache=False)
        hidden = [*said.hidden_states[:-1], last[0][0] if isinstance(last[0], tuple) else last[0]]
        chosen = self.options.layers_of(len(layers))
        return self.features([hidden[layer] for layer in chosen])[0]

    @torch.no_grad()
    def say(self, next_tokens: list[int], features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the logits and the heads' own features of one sequence whose position i has token i + 1."""
        positions = torch.arange(len(next_tokens))[None]
        logits, own = self.head(torch.tensor([next_tokens]), positions, features[None])
        return logits[0], own[0]
