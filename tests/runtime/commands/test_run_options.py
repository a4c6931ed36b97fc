"""The options of `tensorwright run`: each reaches the engine; what is wrong is told in one line, with exit code 2."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

from support.command_line import call
from support.fake_runtime import EOS, FakeEngine, byte_tokenizer, fake_module, write_engine
from tensorwright.options.request import SAMPLING
from tensorwright.runtime.engine import native
from tensorwright.runtime.requests.sampling_params import SamplingParams

TEMPLATE = "{% for message in messages %}{{ message.role[0] }}:{{ message.content }};{% endfor %}>"
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[FakeEngine]:
    """One per LLM made."""
    made: list[FakeEngine] = []
    monkeypatch.setattr(native, "create_engine", lambda *args: made.append(FakeEngine()) or made[-1])
    monkeypatch.setattr(native, "load_module", fake_module)
    return made


@pytest.fixture
def engine(engines: list[FakeEngine], tmp_path: Path) -> str:
    return str(write_engine(tmp_path / "engine", more={"chat_template.jinja": TEMPLATE, "tokenizer_config.json": "{}"}))


def test_every_request_parameter_has_an_option() -> None:
    """But those that make no difference here: one set of parameters for all prompts, and the text is the output.
    Guided decoding has options of its own, see test_guided_options.py, and --adapter loads and names an adapter."""
    without = {
        "priority", "tenant", "tenant_weight", "deadline", "cache_salt", "detokenize", "guided_decoding",
        "kept_special_tokens", "adapter", "logits_processors",
    }  # fmt: skip
    assert {field.name for field in dataclasses.fields(SamplingParams)} - {
        option.name for option in SAMPLING
    } == without


@pytest.mark.parametrize(
    ("arguments", "field", "value"),
    [
        ("-n 3", "n", 3),
        ("--max-tokens 3", "max_tokens", 3),
        ("--min-tokens 2", "min_tokens", 2),
        ("--temperature 0.5", "temperature", 0.5),
        ("--top-k 4", "top_k", 4),
        ("--top-p 0.25", "top_p", 0.25),
        ("--min-p 0.125", "min_p", 0.125),
        ("--typical-p 0.75", "typical_p", 0.75),
        ("--xtc-probability 0.5", "xtc_probability", 0.5),
        ("--xtc-threshold 0.25", "xtc_threshold", 0.25),
        ("--dry-multiplier 0.5 --dry-sequence-breaker none", "dry_multiplier", 0.5),
        ("--dry-base 2", "dry_base", 2.0),
        ("--dry-allowed-length 3", "dry_allowed_length", 3),
        ("--dry-penalty-last-n 64", "dry_penalty_last_n", 64),
        ("--no-repeat-ngram-size 3", "no_repeat_ngram_size", 3),
        ("--seed 7", "seed", 7),
        ("--repetition-penalty 1.5", "repetition_penalty", 1.5),
        ("--presence-penalty 0.5", "presence_penalty", 0.5),
        ("--frequency-penalty -0.5", "frequency_penalty", -0.5),
        ("--logit-bias 5=-2 --logit-bias 3=-inf", "logit_bias", [(3, -math.inf), (5, -2.0)]),
        ("--stop-token-id 9 --stop-token-id 8", "stop_token_ids", [9, 8]),
        ("--ignore-eos", "ignore_eos", True),
        ("--logprobs 2 --json", "logprobs", 2),
        ("--prompt-logprobs 0 --json", "prompt_logprobs", 0),
        ("--timeout 2.5", "timeout_s", 2.5),
    ],
)
def test_each_reaches_the_engine(
    engine: str, engines: list[FakeEngine], capsys: Capture, arguments: str, field: str, value: Any
) -> None:
    assert call(capsys, "run", engine, "--prompt", "ab", *arguments.split())[0] == 0
    assert call(capsys, "run", engine, "--prompt", "ab")[0] == 0
    given, default = (vars(next(iter(made.submitted.values()))) for made in engines)
    assert given[field] == value
    assert {name for name in given if given[name] != default[name]} == {field}


def test_several_completions(engine: str, capsys: Capture) -> None:
    run = ("run", engine, "--prompt", "abc", "-n", "2", "--max-tokens", "2")
    assert call(capsys, *run) == (0, "--> 1 of 2 <--\nab\n--> 2 of 2 <--\nbc\n", "")
    assert call(capsys, *run, "--echo")[1] == "--> 1 of 2 <--\nabcab\n--> 2 of 2 <--\nabcbc\n"
    _, out, err = call(capsys, *run, "--json", "--stats")
    result = json.loads(out)
    assert result["text"] == "ab"
    assert [each["text"] for each in result["completions"]] == ["ab", "bc"]
    assert "3 prompt tokens, 4 generated" in err
    assert "completions" not in json.loads(call(capsys, *run[:-4], "--max-tokens", "2", "--json")[1])


def test_bad_words_reach_the_engine(engine: str, engines: list[FakeEngine], capsys: Capture) -> None:
    assert call(capsys, "run", engine, "--prompt", "ab", "--bad-word", "x", "--bad-word", "yz")[0] == 0
    encode = byte_tokenizer().encode
    banned = next(iter(engines[0].submitted.values())).bad_words
    assert banned == [encode(text).ids for text in ("x", " x", "yz", " yz")]


def test_stop_strings(engine: str, capsys: Capture) -> None:
    run = ("run", engine, "--prompt", "abcdef", "--stop", "zz", "--stop", "cd")
    assert call(capsys, *run) == (0, "ab\n", "")
    assert call(capsys, *run, "--include-stop") == (0, "abcd\n", "")


def test_the_end_of_the_prompt(engine: str, capsys: Capture) -> None:
    assert (
        call(capsys, "run", engine, "--prompt", "abcdef", "--truncate-prompt", "2", "--max-tokens", "3")[1] == "efe\n"
    )


def test_special_tokens(engine: str, capsys: Capture) -> None:
    run = ("run", engine, "--prompt", "a<end>b", "--max-tokens", "3", "--ignore-eos")
    assert call(capsys, *run)[1] == "ab\n"
    assert call(capsys, *run, "--show-special")[1] == "a<end>b\n"
    assert byte_tokenizer().token_to_id("<end>") == EOS


def test_logprobs_as_json(engine: str, capsys: Capture) -> None:
    run = ("run", engine, "--prompt", "abc", "--max-tokens", "2", "--json")
    result = json.loads(call(capsys, *run, "--logprobs", "1", "--prompt-logprobs", "0")[1])
    a, b, c = byte_tokenizer().encode("abc").ids
    assert [[entry["token_id"] for entry in place] for place in result["logprobs"]] == [[a, 0], [b, 0]]
    assert result["prompt_logprobs"] == [
        None,
        [{"token_id": b, "logprob": -0.5, "rank": 1, "decoded_token": "b"}],
        [{"token_id": c, "logprob": -1.0, "rank": 1, "decoded_token": "c"}],
    ]
    assert not {"logprobs", "prompt_logprobs"} & set(json.loads(call(capsys, *run)[1]))


def test_chat(engine: str, capsys: Capture, tmp_path: Path) -> None:
    run = ("run", engine, "--prompt", "hi", "--chat", "--max-tokens", "99")
    assert call(capsys, *run, "--stop", ">")[1] == "u:hi;\n"
    assert call(capsys, *run, "--stop", ">", "--system", "be kind")[1] == "s:be kind;u:hi;\n"
    own = tmp_path / "own.jinja"
    own.write_text("é{{ messages[0].content }}", encoding="utf-8")
    assert call(capsys, *run, "--stop", "hi", "--chat-template", str(own))[1] == "é\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("-n 0", "n must be a positive integer, got 0"),
        ("-n 65", "n must be at most max_batch_size"),
        ("--top-k -2", "top_k must be 0 or -1 (all tokens) or a positive integer, got -2"),
        ("--top-k 99999999999", "top_k must be"),
        ("--top-k many", "Invalid value for '--top-k': 'many' is not a valid integer"),
        ("--top-p 0", "top_p must be above 0 and at most 1, got 0.0"),
        ("--min-p nan", "min_p must be a number from 0 to 1, got nan"),
        ("--min-tokens 65", "min_tokens must be an integer from 0 to max_tokens, got 65"),
        ("--max-tokens 0", "max_tokens must be a positive integer"),
        ("--seed -1", "seed must be an integer from 0 to 2**64 - 1"),
        ("--repetition-penalty 0", "repetition_penalty must be a number from 0.01 to 100, got 0.0"),
        ("--presence-penalty inf", "presence_penalty must be a number from -100 to 100, got inf"),
        ("--frequency-penalty x", "Invalid value for '--frequency-penalty'"),
        (
            "--logit-bias 5",
            "'--logit-bias': must be TOKEN=BIAS such as 42=-1.5, or 42=-inf to forbid token 42, got '5'",
        ),
        ("--logit-bias a=1", "got 'a=1'"),
        ("--logit-bias 5=1 --logit-bias 5=2", "token 5 must have one bias, got several"),
        ("--logit-bias 5=inf", "logit_bias must be a dict of token ids"),
        ("--logit-bias 257=1", "logit_bias must be below 257, got 257"),
        ("--bad-word=", "bad_words must be a list of texts and lists of token ids, none empty, got ''"),
        ("--stop=", "stop must be a text or a list of texts, none empty, got ''"),
        ("--stop-token-id 257", "stop_token_ids must be below 257, got 257"),
        ("--logprobs 1", "--logprobs needs --json, which prints them"),
        ("--prompt-logprobs 1", "--prompt-logprobs needs --json, which prints them"),
        ("--json --logprobs -1", "logprobs must be an integer >= 0, or None, got -1"),
        ("--json --prompt-logprobs 258", "prompt_logprobs must be at most 257, got 258"),
        ("--truncate-prompt 0", "truncate_prompt_tokens must be a positive integer or None, got 0"),
        ("--timeout -1", "timeout must be a number from 0 to 1e+07, got -1.0"),
        ("--system x", "--system needs --chat"),
        ("--chat-template /dev/null", "--chat-template needs --chat"),
        ("--chat --chat-template nowhere", "a file of it) or the name of one of the templates (default)"),
        ("--chat --chat-template no/where", "--chat-template must be a readable file of UTF-8 text"),
    ],
)
def test_wrong_values_are_told_in_one_line(engine: str, capsys: Capture, arguments: str, words: str) -> None:
    code, out, err = call(capsys, "run", engine, "--prompt", "ab", *arguments.split())
    assert code == 2
    assert (words in json.loads(out)["message"]) if "--json" in arguments else not out
    assert err.startswith("error: ")
    assert words in err
    assert err.count("\n") == 1


def test_files_that_are_no_text_are_told_in_one_line(
    engine: str, capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff"), encoding="utf-8"))
    for arguments in (["--prompt", "-"], ["--prompt", "x", "--chat", "--chat-template", str(tmp_path / "bytes")]):
        code, out, err = call(capsys, "run", engine, *arguments)
        assert (code, out) == (2, "")
        assert "UTF-8 text: " in err
        assert err.count("\n") == 1


def test_chat_without_a_template_is_told_in_one_line(
    engines: list[FakeEngine], capsys: Capture, tmp_path: Path
) -> None:
    code, out, err = call(capsys, "run", str(write_engine(tmp_path / "plain")), "--prompt", "hi", "--chat")
    assert (code, out) == (2, "")
    assert "has no chat template" in err
    assert err.count("\n") == 1
