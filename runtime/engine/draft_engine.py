"""Opens the engine of a draft model, and checks that it can propose tokens to another engine."""

from __future__ import annotations

import json
from typing import Any

from tensorwright.engine_format.file_names import TOKENIZER
from tensorwright.errors import InvalidOptionError
from tensorwright.runtime.engine.engine_dir import EngineDir, open_engine
from tensorwright.runtime.engine.executors import require_cpu


def open_draft(path: str, target: EngineDir) -> EngineDir:
    """Returns the engine. Raises EngineError if it cannot be opened, InvalidOptionError if it is not of target cpu, has
    recurrent layers, or names tokens in another way than `target` does."""
    draft = open_engine(path)
    require_cpu(draft, "a draft model")
    if draft.state_bytes:
        raise InvalidOptionError(
            f"{path} cannot be a draft model: it has recurrent layers, whose states cannot be taken back behind a "
            "wrong proposal; choose another one"
        )
    ours, theirs = _vocabulary(target), _vocabulary(draft)
    if ours != theirs or (ours is None and draft.vocab_size != target.vocab_size):
        raise InvalidOptionError(
            f"{path} cannot be a draft model of {target.path}: its tokenizer has other tokens, so its proposals would "
            "mean something else; choose a model of the same family"
        )
    return draft


def _vocabulary(engine: EngineDir) -> dict[str, Any] | None:
    """Returns the tokens with their ids, in the parts of tokenizer.json that have them; None without a tokenizer."""
    file = engine.path / TOKENIZER
    if not file.exists():
        return None
    content = json.loads(file.read_text(encoding="utf-8"))
    return {"vocab": content.get("model", {}).get("vocab"), "added": content.get("added_tokens")}
