"""Runs `tensorwright eval`, which computes the perplexity of text files with the engine itself.

Each file is one text. The tokenizer encodes it with its special tokens, such as a first <s>. The tokens are cut into
windows of N tokens side by side, of which the last may be shorter. The engine sees one window at a time, so the first
token of a window has nothing before it and is not scored.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from tensorwright.errors import InvalidOptionError, InvalidRequestError, NumericalError
from tensorwright.options.declare import Door
from tensorwright.runtime.base.host import choose_threads
from tensorwright.runtime.base.progress import progress_bar
from tensorwright.runtime.commands.first_use import open_named
from tensorwright.runtime.engine.engine_dir import EngineDir
from tensorwright.runtime.engine.executors import require_cpu
from tensorwright.runtime.text.tokenizer import Tokenizer
from tensorwright.runtime.tools.evaluate import Scorer


@dataclass(frozen=True)
class Score:
    """The score of one file, or of all. tokens: the number of scored tokens. nll: the mean negative logprob of a token,
    in nats. bytes, characters: of the text of the scored tokens, in UTF-8 and in Unicode code points. bits_per_byte,
    bits_per_character: the negative logprobs in bits over these, by which models with other tokenizers compare."""

    file: str
    perplexity: float | None  # None means that it is too large for a number.
    nll: float
    tokens: int
    windows: int
    bytes: int
    characters: int
    bits_per_byte: float
    bits_per_character: float
    seconds: float


@dataclass(frozen=True)
class Scored:
    """A file's windows, and the text of the tokens that are scored in them."""

    file: str
    windows: list[list[int]]
    text: str


def evaluate(
    engine: str, files: Sequence[str], window: int, threads: int | None, as_json: bool, options: dict[str, Any]
) -> None:
    """Scores the files and prints the results. cli.eval documents the options; `options` has those of a first use."""
    opened, _lease = open_named(engine, Door.EVAL, options)
    require_cpu(opened, "tensorwright eval")
    check_window(window, opened)
    texts = [read_file(file, opened, window) for file in files]
    scorer = Scorer(opened, window, choose_threads(threads))
    total = sum(len(ids) - 1 for text in texts for ids in text.windows)
    scores, logprobs = [], []
    with progress_bar("scoring", total, sys.stderr.isatty()) as advance:
        for text in texts:
            begin = time.perf_counter()
            of_file: list[float] = []
            for part in scorer.score(text.windows):
                of_file += part.tolist()
                advance(len(part))
            scores.append(score_of(text, of_file, time.perf_counter() - begin))
            logprobs += of_file
    together = Scored("total", [ids for text in texts for ids in text.windows], "".join(text.text for text in texts))
    scores.append(score_of(together, logprobs, sum(score.seconds for score in scores)))
    show_json(opened, scores, window) if as_json else show(opened, scores, window)


def check_window(window: int, engine: EngineDir) -> None:
    if not 2 <= window <= engine.max_seq_len:
        raise InvalidOptionError(
            f"--window must be 2 to the engine's max_seq_len {engine.max_seq_len}, got {window}"
            + (", build the engine with a larger --max-seq-len" if window > engine.max_seq_len else "")
        )


def read_file(file: str, engine: EngineDir, window: int) -> Scored:
    """Returns a file cut into windows. Raises InvalidRequestError if the file is no text of at least two tokens of the
    model."""
    path, tokenizer = Path(file), _tokenizer(engine)
    data = path.read_bytes()
    if not data:
        raise InvalidRequestError(f"{path}: must hold text, is empty; leave it out")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"{path}: must be UTF-8 text ({error}); convert it") from error
    ids, ends = tokenizer.encode_with_ends(text)
    if len(ids) < 2:
        raise InvalidRequestError(
            f"{path}: must be at least 2 tokens, for the first is not scored, is {len(ids)}; leave it out"
        )
    if max(ids) >= engine.vocab_size:
        raise InvalidRequestError(
            f"{engine.path}: its tokenizer gives token {max(ids)} for {path}, but the model has a vocabulary of "
            f"{engine.vocab_size}; build the engine again with the model's own tokenizer"
        )
    starts = range(0, len(ids), window)
    scored = [text[ends[start] : ends[min(len(ids), start + window) - 1]] for start in starts]
    return Scored(file, cut(ids, window), "".join(scored))


def cut(ids: list[int], window: int) -> list[list[int]]:
    """Cuts tokens into windows side by side. A last window of one token has nothing to score and is left out."""
    parts = [ids[start : start + window] for start in range(0, len(ids), window)]
    return [part for part in parts if len(part) > 1]


def score_of(scored: Scored, logprobs: list[float], seconds: float) -> Score:
    nll = -math.fsum(logprobs) / len(logprobs)
    if math.isinf(nll):
        raise NumericalError(f"{scored.file}: the engine gives a token of the text probability 0; build it in float32")
    try:
        perplexity = math.exp(nll)
    except OverflowError:
        perplexity = None
    bits = nll * len(logprobs) / math.log(2)
    size, characters = len(scored.text.encode()), len(scored.text)
    return Score(
        scored.file, perplexity, nll, len(logprobs), len(scored.windows), size, characters,
        # A text whose tokens all stand for nothing counts as one byte.
        bits / max(1, size), bits / max(1, characters), seconds,
    )  # fmt: skip


def _tokenizer(engine: EngineDir) -> Tokenizer:
    if engine.tokenizer is None:
        raise InvalidRequestError(f"{engine.path} has no tokenizer, so it cannot read text: build it with one")
    return engine.tokenizer


def show(engine: EngineDir, scores: list[Score], window: int) -> None:
    added = _tokenizer(engine).encode("")
    special = f"with the tokenizer's special tokens {added}" if added else "without special tokens, as the tokenizer"
    click.echo(f"{engine.path}: windows of {window} tokens, the first of each is not scored; files read {special}")
    for score in scores:
        perplexity = "too large" if score.perplexity is None else f"{score.perplexity:.4f}"
        click.echo(
            f"{score.file}: perplexity {perplexity}, nll {score.nll:.6f}; {score.tokens} tokens scored in "
            f"{score.windows} windows, {score.bits_per_byte:.4f} bits per byte, {score.seconds:.2f} s"
        )


def show_json(engine: EngineDir, scores: list[Score], window: int) -> None:
    config = engine.config.to_dict()
    facts: dict[str, Any] = {
        "path": str(engine.path),
        **{key: config[key] for key in ("tensorwright_version", "target", "dtype", "model", "build_options")},
        "max_seq_len": engine.max_seq_len,
        "source": engine.config.source.hash,
        "weights_bytes": engine.weights.stat().st_size,
    }
    *files, total = scores
    result = {
        "window": window,
        "special_tokens": _tokenizer(engine).encode(""),
        "files": [asdict(score) for score in files],
        "total": {name: value for name, value in asdict(total).items() if name != "file"},
        "engine": facts,
    }
    click.echo(json.dumps(result, indent=2))
