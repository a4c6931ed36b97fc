"""Runs `tensorwright eval --tasks`, which answers multiple-choice questions by the likelihood of their choices.

A file of tasks has one JSON object on each line:

    {"context": "The sky is", "choices": [" blue", " loud"], "answer": 0}

Context and choice are joined as they are. Scores are those of lm-evaluation-harness (EleutherAI; `multiple_choice`
tasks of lm_eval/api/task.py, `_encode_pair` of lm_eval/api/model.py), and figures compare:

* context + choice is encoded as one text, and the tokens behind those of the context alone are the choice's. White
  space at the end of the context belongs to the choice. An empty context is the model's first token, or its end token.
* acc: how often the choice with the largest log-likelihood is the answer. acc_norm: the same, the log-likelihood over
  the characters of the choice. acc_bytes: over its bytes in UTF-8. White space at a choice's beginning, which the
  harness adds as a delimiter, is not counted in both. Of equal choices the first counts.
* stderr: the standard deviation of the sample over the root of the number of questions.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from tensorwright.errors import InvalidRequestError, NumericalError
from tensorwright.json_text import read_json
from tensorwright.options.declare import Door
from tensorwright.runtime.base.host import choose_threads
from tensorwright.runtime.base.progress import progress_bar
from tensorwright.runtime.commands.first_use import open_named
from tensorwright.runtime.engine.engine_dir import EngineDir
from tensorwright.runtime.engine.executors import require_cpu
from tensorwright.runtime.text.tokenizer import Tokenizer
from tensorwright.runtime.tools.choices import ChoiceScorer, Question

KEYS = ("context", "choices", "answer")


@dataclass(frozen=True)
class Task:
    """One line of a file. line: its number, from 1. answer: the number of the right choice, from 0."""

    line: int
    context: str
    choices: list[str]
    answer: int


@dataclass(frozen=True)
class Answered:
    """A task and the log-likelihoods of its choices."""

    task: Task
    logprobs: list[float]

    def is_right(self, length: Callable[[str], int]) -> bool:
        """Returns whether the answer has the largest log-likelihood over the length of its text."""
        scores = [logprob / length(choice) for logprob, choice in zip(self.logprobs, self.task.choices, strict=True)]
        return scores.index(max(scores)) == self.task.answer


@dataclass(frozen=True)
class TaskScore:
    """The scores of one file. A stderr is None for a single task."""

    file: str
    tasks: int
    acc: float
    acc_stderr: float | None
    acc_norm: float
    acc_norm_stderr: float | None
    acc_bytes: float
    acc_bytes_stderr: float | None
    seconds: float


def evaluate_tasks(
    engine: str, files: Sequence[str], threads: int | None, as_json: bool, options: dict[str, Any]
) -> None:
    """Scores the files and prints the results. cli.eval documents the options; `options` has those of a first use."""
    tasks = [(file, read_tasks(Path(file))) for file in files]
    opened, _lease = open_named(engine, Door.EVAL, options)
    require_cpu(opened, "tensorwright eval")
    questions = [[encode(task, file, opened) for task in of_file] for file, of_file in tasks]
    longest = max(question.longest for of_file in questions for question in of_file)
    scorer = ChoiceScorer(opened, longest, choose_threads(threads))
    results = []
    with progress_bar("scoring", sum(map(len, questions)), sys.stderr.isatty()) as advance:
        for (file, of_file), asked in zip(tasks, questions, strict=True):
            begin = time.perf_counter()
            scores: dict[int, list[float]] = {}
            for number, logprobs in scorer.score(asked):
                scores[number] = logprobs
                advance(1)
            answered = [Answered(task, scores[number]) for number, task in enumerate(of_file)]
            results.append((score_of(file, answered, time.perf_counter() - begin), answered))
    show_json(opened, results) if as_json else show(opened, results)


def read_tasks(path: Path) -> list[Task]:
    """Returns the tasks of a file. Raises InvalidRequestError, which names the line that is none."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"{path}: must be UTF-8 text ({error}); convert it") from error
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        raise InvalidRequestError(f"{path}: must hold tasks, is empty; leave it out")
    return [_task(f"{path}, line {number}", number, line) for number, line in lines]


def _task(where: str, number: int, line: str) -> Task:
    try:
        found = read_json(line)
    except ValueError as error:
        raise InvalidRequestError(f"{where}: is not JSON ({error}); correct it") from error
    if not isinstance(found, dict) or set(found) != set(KEYS):
        came = f"has the keys {', '.join(map(repr, found))}" if isinstance(found, dict) else "is none"
        raise InvalidRequestError(f"{where}: must be an object with the keys {', '.join(KEYS)}, {came}; correct it")
    context, choices, answer = (found[key] for key in KEYS)
    if not isinstance(context, str):
        raise InvalidRequestError(f"{where}: context must be a text, got {context!r:.100}; correct it")
    texts = isinstance(choices, list) and all(isinstance(choice, str) and choice.strip() for choice in choices)
    if not texts or len(choices) < 2:
        raise InvalidRequestError(
            f"{where}: choices must be a list of at least 2 texts that are not blank, got {choices!r:.100}; correct it"
        )
    if type(answer) is not int or not 0 <= answer < len(choices):
        raise InvalidRequestError(
            f"{where}: answer must be the number of a choice, 0 to {len(choices) - 1}, got {answer!r:.100}; correct it"
        )
    return Task(number, context, choices, answer)


def encode(task: Task, file: str, engine: EngineDir) -> Question:
    """Returns the tokens of a task. Raises InvalidRequestError if the engine cannot compute them."""
    where = f"{file}, line {task.line}"
    pairs = [encode_pair(engine, task.context, choice) for choice in task.choices]
    for number, (context, choice) in enumerate(pairs):
        if not choice:
            raise InvalidRequestError(f"{where}: choice {number} adds no token to the context; correct it")
        if len(context) + len(choice) > engine.max_seq_len:
            raise InvalidRequestError(
                f"{where}: the context and choice {number} must be at most the engine's max_seq_len "
                f"{engine.max_seq_len} tokens, are {len(context) + len(choice)}; shorten them"
            )
        if (largest := max(context + choice)) >= engine.vocab_size:
            raise InvalidRequestError(
                f"{where}: the tokenizer gives token {largest}, but the model has a vocabulary of {engine.vocab_size}; "
                "build the engine again with the model's own tokenizer"
            )
    context = pairs[0][0]
    if any(other != context for other, _ in pairs):
        # An empty context may take its only token from the choice (see encode_pair).
        raise InvalidRequestError(f"{where}: the choices do not have one context in common; give a context")
    return Question(context, [choice for _, choice in pairs])


def encode_pair(engine: EngineDir, context: str, choice: str) -> tuple[list[int], list[int]]:
    """Returns the tokens of a context and of a choice behind it, as lm-evaluation-harness splits them."""
    tokenizer = _tokenizer(engine)
    stripped = context.rstrip()
    choice = context[len(stripped) :] + choice
    if not stripped:
        ids = tokenizer.encode(choice, add_special_tokens=False)
        first = _first_token(engine)
        return (ids[:1], ids[1:]) if ids[:1] == [first] else ([first], ids)
    of_context = tokenizer.encode(stripped)
    return of_context, tokenizer.encode(stripped + choice)[len(of_context) :]


def _first_token(engine: EngineDir) -> int:
    """Returns the token that stands before a text that has nothing before it."""
    bos = engine.config.model.bos_token_id
    if bos is not None:
        return bos
    if not engine.eos_token_ids:
        raise InvalidRequestError(f"{engine.path} names no token to begin a text with: give each task a context")
    return engine.eos_token_ids[0]


def _tokenizer(engine: EngineDir) -> Tokenizer:
    if engine.tokenizer is None:
        raise InvalidRequestError(f"{engine.path} has no tokenizer, so it cannot read text: build it with one")
    return engine.tokenizer


def score_of(file: str, answered: Sequence[Answered], seconds: float) -> TaskScore:
    """Returns the means over the tasks, and their standard errors."""
    for each in answered:
        if not all(math.isfinite(logprob) for logprob in each.logprobs):
            raise NumericalError(
                f"{file}, line {each.task.line}: the engine gives a choice probability 0; build it in float32"
            )
    plain = mean_and_stderr([each.is_right(lambda choice: 1) for each in answered])
    by_characters = mean_and_stderr([each.is_right(lambda choice: len(choice.lstrip())) for each in answered])
    by_bytes = mean_and_stderr([each.is_right(lambda choice: len(choice.lstrip().encode())) for each in answered])
    return TaskScore(file, len(answered), *plain, *by_characters, *by_bytes, seconds)


def mean_and_stderr(right: Sequence[bool]) -> tuple[float, float | None]:
    """Returns the mean of ones and zeros, and the standard deviation of the sample over the root of its size."""
    count = len(right)
    mean = sum(right) / count
    if count == 1:
        return mean, None
    return mean, math.sqrt(sum((value - mean) ** 2 for value in right) / (count - 1) / count)


def show(engine: EngineDir, results: Sequence[tuple[TaskScore, Sequence[Answered]]]) -> None:
    click.echo(f"{engine.path}: the choice of the largest log-likelihood, over its characters, and over its bytes")
    for score, _ in results:
        figures = (
            ("acc", score.acc, score.acc_stderr),
            ("acc_norm", score.acc_norm, score.acc_norm_stderr),
            ("acc_bytes", score.acc_bytes, score.acc_bytes_stderr),
        )
        shown = [f"{name} {mean:.4f}" + ("" if se is None else f" ± {se:.4f}") for name, mean, se in figures]
        click.echo(f"{score.file}: {', '.join(shown)}; {score.tasks} tasks, {score.seconds:.2f} s")


def show_json(engine: EngineDir, results: Sequence[tuple[TaskScore, Sequence[Answered]]]) -> None:
    config = engine.config.to_dict()
    files = [
        {
            **asdict(score),
            "answers": [
                {"line": each.task.line, "answer": each.task.answer, "logprobs": each.logprobs} for each in answered
            ],
        }
        for score, answered in results
    ]
    facts = {
        "path": str(engine.path),
        **{key: config[key] for key in ("tensorwright_version", "target", "dtype", "model", "build_options")},
        "source": engine.config.source.hash,
    }
    click.echo(json.dumps({"files": files, "engine": facts}, indent=2))
