"""Random tiny checkpoints on disk, one per family, for everybody's tests.

Every parameter is randomised far from its init, so that a dropped bias, norm weight or scale shows in the logits.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM

from support.tiny_configs import COMMON
from support.tiny_families import FAMILIES, VARIANTS


def make_tiny(path: str | Path, family: str, *, seed: int = 0, **config_overrides: Any) -> Path:
    """Writes a float32 checkpoint of `family` (a key of FAMILIES) with a word-level tokenizer to `path`.

    Overrides go to the config class; `dtype="bfloat16"` stores the weights rounded to that type. Returns the path.
    """
    path = Path(path)
    config_class, defaults = FAMILIES[family]
    dtype = getattr(torch, config_overrides.pop("dtype", "float32"))
    config = config_class(**{**COMMON, **defaults, **config_overrides})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        randomise(model)
    model.to(dtype)
    derive_decays(model)
    model.save_pretrained(path, safe_serialization=True)
    write_tokenizer(path, config.vocab_size)
    return path


def make_variant(path: str | Path, variant: str, *, seed: int = 0, **config_overrides: Any) -> Path:
    """make_tiny for one of VARIANTS."""
    family, overrides = VARIANTS[variant]
    return make_tiny(path, family, seed=seed, **{**overrides, **config_overrides})


def randomise(model: torch.nn.Module) -> None:
    """Matrices become 8 times their init's spread; norm weights and biases get 0.3 of normal noise added, and stored
    buffers 0.1."""
    with torch.no_grad():
        for parameter in model.parameters():  # tied ones appear once
            # Equal rows are the norm weights of every head, the biases of every expert or the decays of every channel.
            if parameter.dim() >= 2 and not bool((parameter == parameter[:1]).all()):
                parameter.mul_(8.0)
            else:
                parameter.add_(0.3 * torch.randn_like(parameter))
        stored = model.state_dict()
        for name, buffer in model.named_buffers():  # the corrections of routers, which begin as zeros
            if name in stored and buffer.is_floating_point():
                buffer.add_(0.1 * torch.randn_like(buffer))
        derive_decays(model)


def derive_decays(model: torch.nn.Module) -> None:
    """Gives lightning attention the decays that follow from its slopes, in float32: they are buffers of their own, and
    would be noise otherwise, or each rounded by itself."""
    for module in model.modules():
        if hasattr(module, "decay_factors"):
            module.slope_rate = module.slope_rate.float().abs()
            decays = module.decay_factors(module.slope_rate)
            module.query_decay, module.key_decay, module.diagonal_decay = decays


def class_of(path: str | Path) -> Any:
    """The class of transformers that computes a checkpoint's logits: of several parts, that which config.json names."""
    config = json.loads((Path(path) / "config.json").read_text(encoding="utf-8"))
    nested = "text_config" in config or "vision_config" in config
    return getattr(transformers, config["architectures"][0]) if nested else AutoModelForCausalLM


def load_eager(path: str | Path, dtype: str = "float32") -> torch.nn.Module:
    """The checkpoint in transformers as the oracle runs it: eager attention and experts, eval mode, on the CPU."""
    eager = {"attn_implementation": "eager", "experts_implementation": "eager"}
    return class_of(path).from_pretrained(path, dtype=getattr(torch, dtype), local_files_only=True, **eager).eval()


def write_tokenizer(path: Path, vocab_size: int) -> None:
    """Words t0 t1 ... are the ids 0 1 ...; the last id is <unk>. Plain JSON: nothing of it depends on a library."""
    words = {f"t{i}": i for i in range(vocab_size - 1)} | {"<unk>": vocab_size - 1}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "<unk>"},
    }
    (path / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "<unk>",
        "eos_token": "t2",
        "bos_token": "t1",
    }
    (path / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
