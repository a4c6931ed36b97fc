"""Converts the heads of a checkpoint, and measures what that costs: `tensorwright convert-heads`."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tensorwright.builder.build import build
from tensorwright.builder.measure.sample import bundled_text
from tensorwright.errors import InvalidOptionError, reason
from tensorwright.insight.estimate.costs import PlannedCosts, token_bytes
from tensorwright.models.checkpoint import open_checkpoint
from tensorwright.models.convert_heads import Heads, convert_heads, read_heads, refuse_existing
from tensorwright.options.text_file import NamedText, read_text_file
from tensorwright.runtime.base.host import default_threads
from tensorwright.runtime.engine.engine_dir import open_engine
from tensorwright.runtime.tools.evaluate import Scorer

WINDOW = 512
TOKENS = 8192
"""The most tokens that are measured, and how many the engine sees at a time."""

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Accuracy:
    """What an engine of a checkpoint says of a text. perplexity: of its tokens. kv_bytes: of one more position."""

    perplexity: float
    kv_bytes: float


@dataclass(frozen=True)
class Converted:
    """A conversion. before, after, tokens, text: what was measured; None without a measurement."""

    path: Path
    heads: Heads
    before: Accuracy | None
    after: Accuracy | None
    tokens: int
    text: str


def convert(
    model: str | Path, out: str | Path, kv_heads: int, *, text: str | Path | None = None, measure: bool = True,
    progress: Progress | None = None,
) -> Converted:  # fmt: skip
    """Writes the checkpoint at `model` to `out` with fewer heads of K and V, and measures both. text: a file of UTF-8
    text; None takes one of this package.

    Raises what `convert_heads` raises, InvalidOptionError for a text that is too short, and what `build` raises.
    """
    tell = progress or (lambda phase, done, total: None)
    checkpoint = open_checkpoint(model)
    read_heads(checkpoint, kv_heads)  # what cannot be is refused before a build that takes minutes
    named = bundled_text() if text is None else read_text_file("text", os.fspath(text))
    place = Path(os.path.abspath(os.path.expanduser(out)))
    refuse_existing(place)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        folder = tempfile.mkdtemp(dir=place.parent)
    except OSError as error:
        raise InvalidOptionError(f"out: {place} cannot be written ({reason(error)})") from error
    before = after = None
    tokens = 0
    try:
        if measure:
            before, tokens = _measured(checkpoint.path, Path(folder) / "before", named, tell, "before")
        tell("convert", 0, 0)
        heads = convert_heads(checkpoint, place, kv_heads, lambda done, total: tell("convert", done, total))
        if measure:
            after, tokens = _measured(place, Path(folder) / "after", named, tell, "after")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return Converted(place, heads, before, after, tokens, named.name)


def _measured(model: Path, engine: Path, text: NamedText, tell: Progress, when: str) -> tuple[Accuracy, int]:
    build(model, engine, accuracy="none", progress=lambda phase, done, total: tell(f"{when}: {phase}", done, total))
    opened = open_engine(engine, read_tokenizer=True)
    costs = PlannedCosts(opened.plan.read_bytes())
    if opened.tokenizer is None:
        rng = np.random.default_rng(0)
        ids = rng.integers(0, opened.vocab_size, TOKENS).tolist()
    else:
        ids = opened.tokenizer.encode(text.content)[:TOKENS]
    longest = min(WINDOW, opened.max_seq_len)
    windows = [ids[first : first + longest] for first in range(0, len(ids), longest)]
    windows = [window for window in windows if len(window) > 1]
    if not windows:
        raise InvalidOptionError(f"text: {text.name} has {len(ids)} tokens, and two at least are measured")
    tell(f"{when}: score", 0, 0)
    scores = np.concatenate(list(Scorer(opened, longest, default_threads()).score(windows)))
    return Accuracy(math.exp(-float(scores.mean())), token_bytes(costs)), len(scores)
