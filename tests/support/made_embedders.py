"""Tiny random checkpoints of the kinds that embed and rerank, as they are published."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModel

from support.tiny_models import make_tiny, write_tokenizer

PROMPTS = {"query": "t5 t6 ", "document": ""}
YES, NO = 40, 41
"""Tokens of "yes" and "no" in the tokenizer of `make_reranker`."""


def make_embedder(path: Path, family: str, mode: str | None = None, *, seed: int = 3, **config: Any) -> Path:
    """Writes a model without lm_head, such as Qwen3Model. mode: the key of the pooling's config.json that is true, in
    the files of sentence-transformers; None leaves these files out."""
    whole = make_tiny(path.with_name(f"{path.name}-whole"), family, seed=seed, **config)
    AutoModel.from_pretrained(whole, dtype=torch.float32).save_pretrained(path)
    for file in whole.glob("tokenizer*"):
        shutil.copy(file, path)
    if mode is None:
        return path
    kinds = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")]
    modules = [
        {"idx": number, "name": str(number), "path": place, "type": f"sentence_transformers.models.{kind}"}
        for number, (kind, place) in enumerate(kinds)
    ]
    (path / "modules.json").write_text(json.dumps(modules))
    (path / "1_Pooling").mkdir()
    (path / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 32, mode: True}))
    prompts = {"prompts": PROMPTS, "default_prompt_name": None}
    (path / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    return path


def make_reranker(path: Path, *, seed: int = 5) -> Path:
    """Writes a Qwen3ForCausalLM whose tokenizer has the tokens "yes" and "no"."""
    make_tiny(path, "qwen3", seed=seed)
    size = json.loads((path / "config.json").read_text())["vocab_size"]
    write_tokenizer(path, size)
    tokenizer = json.loads((path / "tokenizer.json").read_text())
    words = {number: word for word, number in tokenizer["model"]["vocab"].items()} | {YES: "yes", NO: "no"}
    tokenizer["model"]["vocab"] = {word: number for number, word in words.items()}
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    return path
