"""Opens the engine of a draft model, and checks that it can propose to another engine; reads an engine's heads."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from tensorwright.engine_format.file_names import DRAFT_TOKENS, TOKENIZER
from tensorwright.errors import EngineError, InvalidOptionError
from tensorwright.runtime.engine.engine_dir import EngineDir, open_engine


def open_draft(path: str, target: EngineDir) -> EngineDir:
    """Returns the engine. Raises EngineError if it cannot be opened, InvalidOptionError if it is of another target than
    `target`, has recurrent layers or sparse prefill, or names tokens in another way."""
    draft = open_engine(path)
    if draft.target != target.target:
        raise InvalidOptionError(
            f"a draft model needs an engine of target {target.target}, as {target.path} is, {path} is of target "
            f"{draft.target!r}: build the model once more with --target {target.target}"
        )
    if draft.state_bytes:
        raise InvalidOptionError(
            f"{draft.what_has_states} cannot be taken back behind a wrong proposal, so it cannot be a draft model; "
            "choose another one"
        )
    if draft.config.build_options.get("sparse_prefill"):
        raise InvalidOptionError(
            f"{path} cannot be a draft model: it has sparse prefill, and its prompts are computed in any parts; build "
            "it without"
        )
    ours, theirs = _vocabulary(target), _vocabulary(draft)
    if ours != theirs or (ours is None and draft.vocab_size != target.vocab_size):
        raise InvalidOptionError(
            f"{path} cannot be a draft model of {target.path}: its tokenizer has other tokens, so its proposals would "
            "mean something else; choose a model of the same family"
        )
    return draft


def read_draft_tokens(engine: EngineDir) -> list[int]:
    """Returns the model's token for each that the engine's heads propose; [] if they propose all tokens by the same
    numbers. Raises EngineError if the file is not as config.json says."""
    heads = engine.config.heads
    if heads is None or heads.vocab_size == engine.vocab_size:
        return []
    file = engine.file(DRAFT_TOKENS.format(engine.target))
    data = file.read_bytes()
    if len(data) != 4 * heads.vocab_size:
        raise EngineError(
            f"{file}: must have {heads.vocab_size} tokens of 4 bytes, has {len(data)} bytes; build the engine again"
        )
    return np.frombuffer(data, "<i4").tolist()


def _vocabulary(engine: EngineDir) -> dict[str, Any] | None:
    """Returns the tokens with their ids, in the parts of tokenizer.json that have them; None without a tokenizer."""
    file = engine.path / TOKENIZER
    if not file.exists():
        return None
    content = json.loads(file.read_text(encoding="utf-8"))
    return {"vocab": content.get("model", {}).get("vocab"), "added": content.get("added_tokens")}
