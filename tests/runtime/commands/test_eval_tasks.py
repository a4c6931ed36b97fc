"""`tensorwright eval --tasks`: what is read, how choices are scored, and that company changes no bit."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from support.command_line import call
from support.fake_runtime import EOS, byte_tokenizer
from support.toy_engine import MAX_SEQ_LEN, make_toy, seal, write_toy_engine
from tensorwright.errors import InvalidRequestError, NumericalError
from tensorwright.runtime.commands.eval_tasks import (
    Answered,
    Task,
    encode,
    encode_pair,
    mean_and_stderr,
    read_tasks,
    score_of,
)
from tensorwright.runtime.engine.engine_dir import EngineDir, open_engine
from tensorwright.runtime.tools import choices
from tensorwright.runtime.tools.choices import ChoiceScorer, Question
from tensorwright.runtime.tools.evaluate import Scorer

Capture = pytest.CaptureFixture[str]
GOOD = {"context": "The sky is", "choices": [" blue", " loud and far", " not"], "answer": 0}


@pytest.fixture(scope="module", params=[(), (64,)], ids=["pages", "states"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> EngineDir:
    """Two layers, the second with a sliding window in a cache group of its own; and one that says that it has states,
    whose contexts are computed anew."""
    toy = make_toy(window=20)
    return open_engine(write_toy_engine(tmp_path_factory.mktemp("toy") / "engine", toy, states=request.param))


def questions(count: int) -> list[Question]:
    rng = np.random.default_rng(2)

    def some(length: int) -> list[int]:
        return rng.integers(0, 257, length).tolist()

    return [
        Question(some(int(rng.integers(1, 70))), [some(int(rng.integers(1, 9))) for _ in range(rng.integers(1, 5))])
        for _ in range(count)
    ]


def slowly(engine: EngineDir, question: Question) -> list[float]:
    """Every choice with its context as a sequence of its own, in the order of its positions."""
    scorer = Scorer(engine, question.longest, 1)
    scores = []
    for choice in question.choices:
        (logprobs,) = scorer.score([question.context + choice])
        scores.append(float(np.sum(logprobs[len(question.context) - 1 :].tolist())))
    return scores


@pytest.mark.parametrize(("places", "tokens", "rows"), [(1, 512, 512), (3, 40, 8), (64, 512, 512), (64, 7, 1)])
def test_the_same_bits_in_any_company(
    engine: EngineDir, places: int, tokens: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = questions(12)
    monkeypatch.setattr(choices, "STEP_TOKENS", tokens)
    monkeypatch.setattr(choices, "step_tokens", lambda vocab_size: rows)
    scorer = ChoiceScorer(engine, max(question.longest for question in asked), 1, places)
    got = dict(scorer.score(asked))
    assert [got[number] for number in range(len(asked))] == [slowly(engine, question) for question in asked]
    assert dict(scorer.score(asked[3:5])) == {0: got[3], 1: got[4]}  # what others left in the cache makes no difference


def test_a_context_is_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = open_engine(write_toy_engine(tmp_path / "engine"))
    (question,) = (Question(list(range(60)), [[1, 2], [3], [4, 5, 6]]),)
    computed = []
    run = ChoiceScorer._run

    def count(self: ChoiceScorer, running: Any, spans: Any, places: Any) -> Any:
        computed.extend((span.begin, span.end) for span in spans)
        return run(self, running, spans, places)

    monkeypatch.setattr(ChoiceScorer, "_run", count)
    assert dict(ChoiceScorer(engine, question.longest, 1).score([question])) == {0: slowly(engine, question)}
    assert computed == [(0, 61), (59, 60), (59, 62)]


def test_a_choice_is_what_it_adds_to_the_context(tmp_path: Path) -> None:
    path = write_toy_engine(tmp_path / "engine")
    tokenizer = byte_tokenizer()
    engine = open_engine(path)
    plain = lambda text: tokenizer.encode(text).ids  # noqa: E731
    assert encode_pair(engine, "The sky is", " blue") == (plain("The sky is"), plain(" blue"))
    # Spaces at the end of a context belong to the choice, and a text with nothing before it follows the first token.
    assert encode_pair(engine, "The sky \n", "is") == (plain("The sky"), plain(" \nis"))
    assert encode_pair(engine, "", "blue") == ([EOS], plain("blue"))
    assert encode_pair(engine, " ", "blue") == ([EOS], plain(" blue"))
    assert encode_pair(engine, "", "<end>x") == ([EOS], plain("x"))


def test_special_tokens_are_the_tokenizers(tmp_path: Path) -> None:
    path = write_toy_engine(tmp_path / "engine")
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    tokenizer.post_processor = TemplateProcessing(single="<end> $A", special_tokens=[("<end>", EOS)])
    tokenizer.save(str(path / "tokenizer.json"))
    seal(path)
    bytes_of = byte_tokenizer().encode
    assert encode_pair(open_engine(path), "sky", " blue") == ([EOS, *bytes_of("sky").ids], bytes_of(" blue").ids)


def answered(logprobs: list[float], choices: list[str], answer: int) -> Answered:
    return Answered(Task(1, "", choices, answer), logprobs)


def test_scores_are_the_harness() -> None:
    """The likeliest; over characters; over bytes. White space before a choice is not counted."""
    given = [answered([-4.0, -5.0], [" ab", " abcdef"], answer) for answer in (0, 1, 1)]
    score = score_of("f", given, 0.5)
    assert (score.tasks, score.acc, score.acc_norm, score.acc_bytes) == (3, 1 / 3, 2 / 3, 2 / 3)
    # -3/2 of "éé" against -4/3 of "abc" for characters, and -3/4 for its bytes.
    score = score_of("f", [answered([-3.0, -4.0], ["éé", " abc"], 0)], 0.5)
    assert (score.acc, score.acc_norm, score.acc_bytes) == (1, 0, 1)
    assert score.acc_stderr is None
    assert score_of("f", [answered([-3.0, -3.0], ["a", "b"], 1)], 0.5).acc == 0  # of equal choices the first
    with pytest.raises(NumericalError, match="line 1: the engine gives a choice probability 0"):
        score_of("f", [answered([-3.0, -math.inf], ["a", "b"], 1)], 0.5)


def test_the_standard_error() -> None:
    values = [True, False, True, True, False]
    mean, error = mean_and_stderr(values)
    assert mean == 0.6
    assert error == pytest.approx(np.std(values, ddof=1) / math.sqrt(5), rel=1e-12)


def write(path: Path, *lines: Any) -> Path:
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n")
    return path


def test_the_command(engine: EngineDir, tmp_path: Path, capsys: Capture) -> None:
    first = write(tmp_path / "first.jsonl", GOOD, "", {**GOOD, "answer": 2}, {**GOOD, "context": ""})
    second = write(tmp_path / "second.jsonl", GOOD)
    arguments = ("eval", str(engine.path), "--tasks", str(first), "--tasks", str(second))
    code, out, err = call(capsys, *arguments, "--json")
    assert (code, err) == (0, "")
    result = json.loads(out)
    tasks = read_tasks(first)
    assert [answer["line"] for answer in result["files"][0]["answers"]] == [1, 3, 4]
    expected = [slowly(engine, encode(task, "f", engine)) for task in tasks]
    assert [answer["logprobs"] for answer in result["files"][0]["answers"]] == expected
    score = score_of(str(first), [Answered(task, logprobs) for task, logprobs in zip(tasks, expected, strict=True)], 0)
    for name in ("file", "tasks", "acc", "acc_stderr", "acc_norm", "acc_norm_stderr", "acc_bytes", "acc_bytes_stderr"):
        assert result["files"][0][name] == getattr(score, name)
    code, out, _ = call(capsys, *arguments)
    lines = out.splitlines()
    assert code == 0
    assert f"{first}: acc {score.acc:.4f} ± {score.acc_stderr:.4f}, acc_norm " in lines[1]
    assert lines[2].startswith(f"{second}: acc ")
    assert "±" not in lines[2]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 2: is not JSON"),
        ("[]", "line 2: must be an object with the keys context, choices, answer, is none"),
        ({"context": "a", "choices": ["b", "c"]}, "line 2: must be an object .* has the keys 'context', 'choices'"),
        ({**GOOD, "label": 1}, "line 2: must be an object .*'label'"),
        ({**GOOD, "context": None}, "line 2: context must be a text, got None"),
        ({**GOOD, "choices": " blue"}, "line 2: choices must be a list of at least 2 texts"),
        ({**GOOD, "choices": [" blue"]}, "line 2: choices must be a list of at least 2 texts"),
        ({**GOOD, "choices": [" blue", " "]}, "line 2: choices must be a list of at least 2 texts that are not blank"),
        ({**GOOD, "answer": 3}, "line 2: answer must be the number of a choice, 0 to 2, got 3"),
        ({**GOOD, "answer": True}, "line 2: answer must be the number of a choice"),
        ({**GOOD, "answer": "0"}, "line 2: answer must be the number of a choice"),
    ],
)
def test_lines_that_are_refused(tmp_path: Path, line: Any, words: str, capsys: Capture) -> None:
    """By their number, and before an engine is looked for."""
    path = write(tmp_path / "tasks.jsonl", GOOD, line)
    with pytest.raises(InvalidRequestError, match=words):
        read_tasks(path)
    code, _, err = call(capsys, "eval", "no engine", "--tasks", str(path))
    assert code != 0
    assert "line 2" in err


def test_files_that_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="must hold tasks, is empty"):
        read_tasks(write(tmp_path / "empty", "", " "))
    (tmp_path / "latin").write_bytes(b"caf\xe9")
    with pytest.raises(InvalidRequestError, match="must be UTF-8"):
        read_tasks(tmp_path / "latin")


def test_questions_that_the_engine_cannot_compute(engine: EngineDir) -> None:
    task = Task(7, "a" * (MAX_SEQ_LEN - 4), [" no", " nono"], 0)
    with pytest.raises(InvalidRequestError, match=f"f, line 7: the context and choice 1 .* {MAX_SEQ_LEN} tokens, are"):
        encode(task, "f", engine)
    assert encode(Task(7, "a" * (MAX_SEQ_LEN - 5), [" no", " nono"], 0), "f", engine).longest == MAX_SEQ_LEN


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "give text FILEs, or --tasks, and not both"),
        (("a.txt", "--tasks", "a.txt"), "give text FILEs, or --tasks, and not both"),
        (("--tasks", "a.txt", "--window", "64"), "--window is for text FILEs"),
    ],
)
def test_arguments_that_do_not_go_together(
    tmp_path: Path, arguments: tuple[str, ...], words: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("text")
    code, _, err = call(capsys, "eval", "engine", *arguments)
    assert code == 2
    assert words in err
