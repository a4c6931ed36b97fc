"""Chooses what the accuracy of an engine is measured on: a text, cut into windows of tokens.

Each window is a sequence of its own, of WINDOW tokens or the engine's max_seq_len if that is less. It is longer where
the build bounds what attention sees, so that most of its tokens have positions which they do not see. It begins with
the special tokens that the tokenizer puts before a text, such as <s>. The tokens of a text without those tokens lie
side by side, and the first token of a window then has nothing before it and is not predicted.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np

from tensorwright.builder.text_file import encode_beginning
from tensorwright.errors import CheckpointError, InvalidOptionError
from tensorwright.options.text_file import NamedText

WINDOW = 512
"""The most tokens of a window."""
FULL_TOKENS = 8192
"""The tokens that accuracy "full" measures, unless the build says another number."""
QUICK_TOKENS, MIN_QUICK_TOKENS = WINDOW, 128
"""The most and the fewest tokens that accuracy "quick" measures, unless the build says another number: one window."""
QUICK_MULTIPLY_ADDS = 256 * 10**9
"""The most multiply-adds of the reference that accuracy "quick" takes for more than MIN_QUICK_TOKENS."""
MAX_BEYOND = 2048
"""The most tokens of a window that have positions which they do not see."""
_SEED = 20240229
_BUNDLED = Path(__file__).with_name("text.txt")


@dataclass(frozen=True)
class Window:
    """One sequence of tokens.

    targets: for each position the token that the text has next, or None where no prediction counts: at the last
    position, and before the tokenizer's special tokens. bytes, characters: of the predicted tokens' text.
    """

    ids: list[int]
    targets: list[int | None]
    bytes: int = 0
    characters: int = 0


@dataclass(frozen=True)
class Sample:
    """The windows. text: what they are made of, for the record. text_xxh3_128: the hash of the whole text, or None."""

    windows: list[Window]
    text: str
    text_xxh3_128: str | None = None


@dataclass(frozen=True)
class Extent:
    """How much is measured. tokens: of all windows together, at most. longest: the most tokens of one window."""

    tokens: int
    longest: int


def longest_window(seen: int | None) -> int:
    """Returns the most tokens of a window of a long model. seen: the length up to which every token sees all that is
    before it, where the build bounds what is seen; None means any.

    Of a window that is not cut, three tokens of four do not see all that is before them.
    """
    return WINDOW if seen is None else max(WINDOW, seen + min(3 * seen, MAX_BEYOND))


def quick_tokens(multiply_adds: int) -> int:
    """Returns how many tokens accuracy "quick" measures of a model whose products take `multiply_adds` for a token.

    The number depends on the model alone, so that two builds measure the same. A small model is measured on a whole
    window. For a model so large that the number is the smallest, reading and converting the weights takes as long as
    multiplying with them.
    """
    return max(MIN_QUICK_TOKENS, min(QUICK_TOKENS, QUICK_MULTIPLY_ADDS // max(1, multiply_adds)))


def bundled_text() -> NamedText:
    """Returns the text that comes with this package."""
    return NamedText("built-in text", _BUNDLED.read_text(encoding="utf-8"))


def require_tokens(text: NamedText, tokenizer: Path, tokens: int) -> None:
    """Raises InvalidOptionError if the text has fewer tokens than are asked for."""
    found = len(_encode(text.content, tokenizer, tokens)[0])
    if found < tokens:
        raise InvalidOptionError(
            f"{text.name} has {found} tokens of this model, and {tokens} must be measured (accuracy_tokens; with "
            "attention_window, kv_budget or sparse_prefill, one more than see everything); give a longer text "
            "(--accuracy-text), or say fewer tokens"
        )


def text_sample(text: NamedText, tokenizer: Path, extent: Extent, vocab_size: int) -> Sample:
    """Returns the windows of the beginning of a text. Raises CheckpointError if the tokenizer is of another model."""
    ids, ends, prefix = _encode(text.content, tokenizer, extent.tokens)
    if max([*ids, *prefix], default=0) >= vocab_size:
        raise CheckpointError(
            f"{tokenizer}: gives token {max([*ids, *prefix])}, but the model has a vocabulary of {vocab_size}; "
            "it belongs to another model"
        )
    return Sample(cut(ids, ends, prefix, text.content, extent), text.name, text.xxh3_128)


def random_sample(extent: Extent, vocab_size: int) -> Sample:
    """Returns windows of random token ids, for a model without a tokenizer."""
    ids = np.random.default_rng(_SEED).integers(0, vocab_size, extent.tokens).tolist()
    return Sample(cut(ids, [0] * len(ids), [], "", extent), "random token ids")


def cut(ids: list[int], ends: list[int], prefix: list[int], text: str, extent: Extent) -> list[Window]:
    """Cuts tokens into windows that begin with `prefix`. The last may be shorter. ends: where each token ends in the
    text. A window with nothing to predict is left out."""
    prefix = prefix[: min(extent.longest, extent.tokens) - 1]
    left, start, windows = extent.tokens, 0, []
    while start < len(ids) and left > len(prefix):
        part = ids[start : start + min(extent.longest, left) - len(prefix)]
        whole = [*prefix, *part]
        if len(whole) > 1:
            first = max(1, len(prefix))
            targets = [whole[p + 1] if first <= p + 1 < len(whole) else None for p in range(len(whole))]
            predicted = start + first - len(prefix)
            scored = text[ends[predicted - 1] if predicted else 0 : ends[start + len(part) - 1]]
            windows.append(Window(whole, targets, len(scored.encode()), len(scored)))
        start += len(part)
        left -= len(whole)
    return windows


def _encode(text: str, tokenizer: Path, count: int) -> tuple[list[int], list[int], list[int]]:
    """Returns up to `count` tokens of a text's beginning, where each ends in the text, and the special tokens that the
    tokenizer puts before a text."""
    encoded = encode_beginning(text, tokenizer, count)
    places = [i for i, is_special in enumerate(encoded.special_tokens_mask) if not is_special]
    prefix = encoded.ids[: places[0]] if places else []
    ids = [encoded.ids[i] for i in places[:count]]
    # A character that several tokens share ends with the first of them.
    ends = list(accumulate((encoded.offsets[i][1] for i in places[:count]), max))
    return ids, ends, prefix
