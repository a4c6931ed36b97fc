"""Engines of pico that chat: a chat template, and a tokenizer with the tokens that mark calls and thinking."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import xxhash

from tensorwright.engine_format.checksums import checksum_text, read_checksums

TEMPLATE = """{% if tone is defined %}# {{ tone }}
{% endif %}{% for message in messages %}# {{ message.role }}: {{ message.content }}
{% endfor %}{% if add_generation_prompt %}def {% endif %}"""


MARKERS = {"<tool_call>": False, "</tool_call>": False, "<think>": False, "</think>": False, "[TOOL_CALLS]": True,
           "[ARGS]": True}  # fmt: skip
"""Tokens that the chat engine's tokenizer has beside pico's, and whether they are special, as models have them."""


def with_markers(tokenizer: dict[str, Any]) -> dict[str, Any]:
    """pico's tokenizer with MARKERS in the place of the last entries of its vocabulary, which no other entry is made
    of."""
    vocab = tokenizer["model"]["vocab"]
    last = sorted(vocab, key=vocab.__getitem__)[-len(MARKERS) :]
    for (marker, special), entry in zip(MARKERS.items(), last, strict=True):
        token = vocab[marker] = vocab.pop(entry)
        rule = {"id": token, "content": marker, "special": special}
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        tokenizer["added_tokens"].append({**rule, **flags})
    merges = tokenizer["model"]["merges"]
    joined = ["".join(merge if isinstance(merge, list) else merge.split(" ")) for merge in merges]
    tokenizer["model"]["merges"] = [merge for merge, entry in zip(merges, joined, strict=True) if entry not in last]
    return tokenizer


def make_chat_engine(source: Path, engine: Path, template: str = TEMPLATE) -> Path:
    """Copies an engine of pico to `engine`, and puts a chat template and MARKERS in."""
    shutil.copytree(source, engine)
    tokenizer = with_markers(json.loads((engine / "tokenizer.json").read_text(encoding="utf-8")))
    sums = {name: tuple(file) for name, file in read_checksums(engine).items()}
    for name, text in (("chat_template.jinja", template), ("tokenizer.json", json.dumps(tokenizer))):
        (engine / name).write_text(text, encoding="utf-8")
        sums[name] = (xxhash.xxh3_128_hexdigest(text.encode()), len(text.encode()))
    (engine / "checksums.txt").write_text(checksum_text(sums))
    return engine
