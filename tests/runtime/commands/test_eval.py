"""`tensorwright eval` on a toy engine: windows, what is scored, the batch makes no difference, wrong input."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from support.command_line import call
from support.fake_runtime import EOS, byte_tokenizer
from support.ragged import Ragged
from support.toy_engine import MAX_SEQ_LEN, make_toy, seal, write_toy_engine
from tensorwright import LLM, SamplingParams
from tensorwright.errors import InvalidRequestError, NumericalError
from tensorwright.runtime.commands.eval import Scored, cut, read_file, score_of
from tensorwright.runtime.engine import native
from tensorwright.runtime.engine.engine_dir import EngineDir, open_engine
from tensorwright.runtime.tools import evaluate
from tensorwright.runtime.tools.evaluate import Scorer

Capture = pytest.CaptureFixture[str]
TEXT = "the quick brown fox jumps over the lazy dog, and then some more of it\n" * 5


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> EngineDir:
    """Two layers, the second with a sliding window in a cache group of its own."""
    return open_engine(write_toy_engine(tmp_path_factory.mktemp("toy") / "engine", make_toy(window=20)))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text(TEXT)
    return tmp_path / "text.txt"


def sequences(lengths: list[int]) -> list[list[int]]:
    rng = np.random.default_rng(1)
    return [rng.integers(0, 257, length).tolist() for length in lengths]


def test_windows_lie_side_by_side() -> None:
    ids = list(range(10))
    assert cut(ids, 4) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert cut(ids, 3) == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]  # the last has nothing to score
    assert cut(ids, 10) == cut(ids, 11) == [ids]


def test_a_score_is_the_mean() -> None:
    text = Scored("f", [[1, 2], [3, 4, 5]], "né")
    score = score_of(text, [-1.0, -2.0, -6.0], 0.5)
    assert (score.nll, score.tokens, score.windows) == (3.0, 3, 2)
    assert score.perplexity == math.exp(3.0)
    assert (score.bytes, score.characters) == (3, 2)
    assert score.bits_per_byte == pytest.approx(9 / math.log(2) / 3, rel=1e-12)
    assert score.bits_per_character == pytest.approx(9 / math.log(2) / 2, rel=1e-12)
    assert score_of(text, [-1000.0], 0.5).perplexity is None
    with pytest.raises(NumericalError, match="probability 0"):
        score_of(text, [-1.0, -math.inf], 0.5)


def test_the_text_of_the_tokens_that_are_scored(engine: EngineDir, tmp_path: Path) -> None:
    """One token is one byte. The first of each window is not scored, and a character counts with its first token."""
    (tmp_path / "text.txt").write_text("0123456é89")  # The window that begins after 8 tokens begins within the é.
    scored = read_file(str(tmp_path / "text.txt"), engine, 4)
    assert [len(ids) for ids in scored.windows] == [4, 4, 3]
    assert scored.text == "123" + "56é" + "89"
    (tmp_path / "marked.txt").write_text("0123456é89", encoding="utf-8-sig")
    assert read_file(str(tmp_path / "marked.txt"), engine, 4).windows == scored.windows


def test_scores_are_the_log_softmax_of_the_logits(engine: EngineDir) -> None:
    longest = 90
    run = Ragged(native.create_executor(engine, 1), 64)
    for name, ids in enumerate(sequences([2, 3, 33, 64, 90])):
        logits = run.step([(str(name), ids)]).astype(np.float64)
        top = logits.max(-1, keepdims=True)
        expected = (logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True)))[
            np.arange(len(ids) - 1), ids[1:]
        ]
        (scores,) = Scorer(engine, longest, 1).score([ids])
        assert scores.shape == (len(ids) - 1,)
        # Both compute in float64; a sum of 257 exponentials and one logarithm.
        np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("most", [32, 50, 200, 512])
def test_the_same_bits_in_any_batch_and_any_chunks(
    engine: EngineDir, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = sequences([100, 2, 31, 64, 99, 100, 5])
    alone = [next(Scorer(engine, 100, 1).score([ids])).tolist() for ids in asked]
    monkeypatch.setattr(evaluate, "MAX_SCORED_PER_STEP", most)
    together = [scores.tolist() for scores in Scorer(engine, 100, 2).score(asked)]
    assert together == alone


def test_as_prompt_logprobs(engine: EngineDir, text: Path, capsys: Capture) -> None:
    """The served engine says the same of every token, bit for bit."""
    windows = cut(byte_tokenizer().encode(TEXT).ids, 100)
    with LLM(engine.path, kv_cache_memory="1MiB", threads=1) as llm:
        params = SamplingParams(max_tokens=1, prompt_logprobs=0)
        outputs = llm.generate([{"prompt_token_ids": ids} for ids in windows], params)
    tables = [zip(ids, output.prompt_logprobs or [], strict=True) for ids, output in zip(windows, outputs, strict=True)]
    served = [[table[token].logprob for token, table in each if table] for each in tables]
    assert served == [scores.tolist() for scores in Scorer(engine, 100, 1).score(windows)]
    total = json.loads(call(capsys, "eval", str(engine.path), str(text), "--window", "100", "--json")[1])["total"]
    flat = [logprob for of_window in served for logprob in of_window]
    assert total["nll"] == -math.fsum(flat) / len(flat)


def test_per_file_and_total(engine: EngineDir, text: Path, tmp_path: Path, capsys: Capture) -> None:
    other = tmp_path / "other.txt"
    other.write_text("another text, with an é")
    arguments = ("eval", str(engine.path), str(text), str(other), str(other), "--window", "64")
    code, out, err = call(capsys, *arguments, "--json")
    assert (code, err) == (0, "")
    result = json.loads(out)
    first, second, third = result["files"]
    assert [each["file"] for each in result["files"]] == [str(text), str(other), str(other)]
    assert {key: second[key] for key in ("nll", "tokens")} == {key: third[key] for key in ("nll", "tokens")}
    count = len(TEXT)
    assert (first["windows"], first["tokens"]) == (-(-count // 64), count - -(-count // 64))
    total = result["total"]
    assert total["tokens"] == first["tokens"] + 2 * second["tokens"]
    sum_of_all = sum(each["nll"] * each["tokens"] for each in result["files"])
    assert total["nll"] == pytest.approx(sum_of_all / total["tokens"], rel=1e-12)
    assert total["perplexity"] == pytest.approx(math.exp(total["nll"]), rel=1e-12)
    assert (result["engine"]["dtype"], result["engine"]["max_seq_len"]) == ("float32", MAX_SEQ_LEN)
    assert result["special_tokens"] == []
    code, out, _ = call(capsys, *arguments)
    lines = out.splitlines()
    assert code == 0
    assert "windows of 64 tokens, the first of each is not scored; files read without special tokens" in lines[0]
    assert lines[1].startswith(f"{text}: perplexity {first['perplexity']:.4f}, nll {first['nll']:.6f}; ")
    assert lines[4].startswith(f"total: perplexity {total['perplexity']:.4f}, ")
    assert f"{total['tokens']} tokens scored in {total['windows']} windows" in lines[4]


def test_special_tokens_are_the_tokenizers(text: Path, tmp_path: Path, capsys: Capture) -> None:
    """One before each file, as the tokenizer adds it; not one before each window."""
    path = write_toy_engine(tmp_path / "engine")
    plain = json.loads(call(capsys, "eval", str(path), str(text), "--json", "--window", "60")[1])
    tokenizer = Tokenizer.from_str((path / "tokenizer.json").read_text())
    tokenizer.post_processor = TemplateProcessing(single="<end> $A", special_tokens=[("<end>", EOS)])
    tokenizer.save(str(path / "tokenizer.json"))
    seal(path)
    result = json.loads(call(capsys, "eval", str(path), str(text), "--json", "--window", "60")[1])
    assert result["special_tokens"] == [EOS]
    assert result["total"]["tokens"] + result["total"]["windows"] == len(TEXT) + 1
    assert plain["total"]["tokens"] + plain["total"]["windows"] == len(TEXT)
    assert "special tokens [256]" in call(capsys, "eval", str(path), str(text), "--window", "60")[1]


@pytest.mark.parametrize(
    ("data", "window", "words"),
    [
        (b"", "64", "must hold text, is empty"),
        (b"caf\xe9", "64", "must be UTF-8 text"),
        (b"x", "64", "must be at least 2 tokens"),
        (b"some text", "1", "--window must be 2 to the engine's max_seq_len 128, got 1"),
        (b"some text", "-5", "--window must be 2 to"),
        (b"some text", "129", "build the engine with a larger --max-seq-len"),
        (b"some text", "many", "not a valid integer"),
        (None, "64", "does not exist"),
    ],
)
def test_wrong_input(
    engine: EngineDir, tmp_path: Path, capsys: Capture, data: bytes | None, window: str, words: str
) -> None:
    """Also with a good file before it: nothing is computed."""
    good, file = tmp_path / "good.txt", tmp_path / "file.txt"
    good.write_text(TEXT)
    if data is not None:
        file.write_bytes(data)
    code, out, err = call(capsys, "eval", str(engine.path), str(good), str(file), "--window", window)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert words in err
    assert err.count("\n") == 1


def test_wrong_places(engine: EngineDir, text: Path, tmp_path: Path, capsys: Capture) -> None:
    assert "give text FILEs, or --tasks" in call(capsys, "eval", str(engine.path))[2]
    assert "is a directory" in call(capsys, "eval", str(engine.path), str(tmp_path))[2]
    code, out, err = call(capsys, "eval", str(tmp_path / "none"), str(text), "--json")
    assert (code, json.loads(out)["error"]) == (2, "EngineError")
    assert "no such engine directory" in err


def test_an_engine_without_tokenizer(text: Path, tmp_path: Path, capsys: Capture) -> None:
    path = write_toy_engine(tmp_path / "engine")
    (path / "tokenizer.json").unlink()
    seal(path)
    code, _, err = call(capsys, "eval", str(path), str(text), "--window", "64")
    assert code == 2
    assert "has no tokenizer" in err


def test_a_tokenizer_of_another_model(text: Path, tmp_path: Path, capsys: Capture) -> None:
    path = write_toy_engine(tmp_path / "engine")
    tokenizer = Tokenizer.from_str((path / "tokenizer.json").read_text())
    tokenizer.add_tokens(["quick"])
    tokenizer.save(str(path / "tokenizer.json"))
    seal(path)
    code, _, err = call(capsys, "eval", str(path), str(text), "--window", "64")
    assert code == 2
    assert "its tokenizer gives token 257" in err


def test_score_refuses_wrong_targets(engine: EngineDir) -> None:
    run = Ragged(native.create_executor(engine, 1), 8)
    arguments = run.arguments([("a", [1, 2, 3])])
    assert len(run.executor.score(**arguments, targets=[0, 256, 5])) == 3
    for targets, words in (
        ([1, 2], "targets must have 3 entries"),
        ([1, 2, 257], "0 to 256"),
        ([1, -1, 2], "0 to 256"),
    ):
        with pytest.raises(InvalidRequestError, match=words):
            run.executor.score(**arguments, targets=targets)


def test_logits_that_are_none(tmp_path: Path, text: Path, capsys: Capture) -> None:
    toy = make_toy()
    toy.w["embed"] = np.full_like(toy.w["embed"], np.nan)
    code, out, err = call(capsys, "eval", str(write_toy_engine(tmp_path / "engine", toy)), str(text), "--window", "64")
    assert (code, out) == (1, "")
    assert "logits must be finite" in err
