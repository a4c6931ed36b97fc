"""Cuts the text of a calibration into sequences of tokens: the user's text, or the one in this folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorwright.builder.text_file import encode_beginning
from tensorwright.engine_format.engine_config import BUILT_IN_TEXT
from tensorwright.engine_format.file_names import TOKENIZER
from tensorwright.errors import CheckpointError, InvalidOptionError
from tensorwright.ir.graph import Graph
from tensorwright.options.text_file import NamedText

MAX_TOKENS = 8192
"""The most tokens of a calibration. More change little: docs/quantization.md."""
MIN_TOKENS = 64
"""The fewest tokens of a user's text. Fewer say next to nothing of the columns of a matrix."""
MAX_SEQUENCE = 256
"""The longest sequence that the text is cut into. The cost of attention grows with its square."""
_VALUE_BYTES = 256 << 20
"""The most bytes of the widest value of the graph, over all tokens."""
_TEXT = Path(__file__).with_name("text.txt")


@dataclass(frozen=True)
class Sample:
    """The tokens of a calibration. text: BUILT_IN_TEXT, or the hash of the user's text."""

    sequences: list[list[int]]
    text: str

    def record(self) -> dict[str, Any]:
        return {"text": self.text, "tokens": sum(map(len, self.sequences))}


def take_sample(folder: Path, text: NamedText | None, cached: Graph) -> Sample:
    """Returns the sample of `text`, by default of the bundled one, for the model of a cached graph.

    folder: where tokenizer.json lies. Raises CheckpointError if it is not there, or belongs to another model, and
    InvalidOptionError for a text that is too short.
    """
    path = folder / TOKENIZER
    if not path.is_file():
        raise CheckpointError(
            "calibration runs a text through the model, which has no tokenizer; put a tokenizer.json beside the "
            "weights, or build with calibrate none"
        )
    name = BUILT_IN_TEXT if text is None else text.as_recorded
    content = _TEXT.read_text(encoding="utf-8") if text is None else text.content
    budget = token_budget(cached)
    ids = encode_beginning(content, path, budget).ids
    vocab_size = cached.facts.vocab_size
    if len(ids) < MIN_TOKENS:
        raise InvalidOptionError(
            f"calibration_text must have at least {MIN_TOKENS} tokens of the model, has {len(ids)}; give a longer one"
        )
    if max(ids) >= vocab_size:
        raise CheckpointError(
            f"the tokenizer gives token {max(ids)}, but the model has a vocabulary of {vocab_size}; it belongs to "
            "another model"
        )
    ids = ids[:budget]
    length = min(MAX_SEQUENCE, cached.facts.max_seq_len)
    return Sample([ids[start : start + length] for start in range(0, len(ids), length)], name)


def token_budget(cached: Graph) -> int:
    """Returns how many tokens of a text are taken, by the widest value of the graph that has a row for each token."""
    widths = [
        value.shape[1]
        for node in cached.nodes
        for value in node.outputs
        if value.rank == 2 and value.shape[0] == "tokens" and isinstance(value.shape[1], int)
    ]
    return max(MIN_TOKENS, min(MAX_TOKENS, _VALUE_BYTES // (4 * max(widths, default=1))))
