"""The C interface gives what LLM gives: tokens, logprobs, facts and statistics; and refuses by name what it lacks."""

from __future__ import annotations

import json
import math
import os
import re
import threading
from collections.abc import Iterator
from ctypes import byref, c_double, c_void_p
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from support.c_library import CLOSED, CallError, Handle, Library
from support.fake_runtime import engine_config, write_engine
from support.places import ROOT
from support.toy_engine import ENDLESS, seal, write_toy_engine
from tensorwright import LLM, SamplingParams, errors
from tensorwright.runtime.c_interface import declarations
from tensorwright.runtime.requests.native_params import NATIVE_PARAMS

PROMPT = [3, 200, 17, 5, 64, 9]
REPEATING = [7, 8, 9, 7, 8, 9, 7, 8]


@pytest.fixture(scope="module")
def library() -> Library:
    return Library()


@pytest.fixture(scope="module")
def engine(library: Library, toy_engine: Path) -> Iterator[Handle]:
    with library.open(toy_engine, kv_cache_memory="32MiB") as handle:
        yield handle


def expected(llm: LLM, prompt: list[int], params: dict[str, Any]) -> list[dict[str, Any]]:
    """What LLM answers, in the form of `answered`."""
    output = llm.generate({"prompt_token_ids": prompt}, SamplingParams(**params, detokenize=False))

    def table(positions: Any) -> Any:
        return [{token: (each.logprob, each.rank) for token, each in one.items()} for one in positions or () if one]

    return [
        {
            "tokens": one.token_ids,
            "finish": one.finish_reason,
            "logprobs": table(one.logprobs),
            "prompt_logprobs": table(output.prompt_logprobs) if one.index == 0 else [],
        }
        for one in output.outputs
    ]


def answered(engine: Handle, prompt: list[int], params: dict[str, Any]) -> list[dict[str, Any]]:
    completions = engine.generate(prompt, **params)
    names = ("tokens", "finish", "logprobs", "prompt_logprobs")
    return [{name: getattr(one, name) for name in names} for one in completions]


SETS: list[dict[str, Any]] = [
    {},
    {"max_tokens": 40, "temperature": 0},
    {"max_tokens": 12, "seed": 2**64 - 1, "top_k": 20, "top_p": 0.9, "min_p": 0.001, "typical_p": 0.95},
    {"max_tokens": 12, "seed": 5, "n": 3, "logprobs": 2, "prompt_logprobs": 1},
    {"max_tokens": 12, "seed": 1, "xtc_probability": 1.0, "xtc_threshold": 0.01, "top_k": -1},
    {"max_tokens": 20, "temperature": 0, "repetition_penalty": 1.5, "presence_penalty": 0.5, "frequency_penalty": 0.25},
    {"max_tokens": 20, "temperature": 0, "dry_multiplier": 2.0, "dry_base": 2, "dry_allowed_length": 1,
     "dry_penalty_last_n": 16, "dry_sequence_breakers": []},
    {"max_tokens": 20, "temperature": 0, "no_repeat_ngram_size": 1, "ignore_eos": True, "min_tokens": 3},
    {"max_tokens": 20, "temperature": 0, "logit_bias": {17: 50.0, 9: -3}, "bad_words": [[17], [9, 64]]},
    {"max_tokens": 20, "temperature": 0, "logit_bias": {17: 80.0}, "stop_token_ids": [17]},
    {"max_tokens": 8, "beam_width": 3, "n": 2, "length_penalty": 0.5, "early_stopping": "never", "logprobs": 0},
    {"max_tokens": 8, "temperature": 0, "truncate_prompt_tokens": 2, "cache_salt": "a", "priority": -3, "tenant": 4,
     "tenant_weight": 2.5, "timeout": 1000, "deadline": 1e6},
]  # fmt: skip


@pytest.mark.parametrize("params", SETS, ids=lambda params: "-".join(params) or "defaults")
def test_the_answer_is_that_of_llm(engine: Handle, toy_llm: LLM, params: dict[str, Any]) -> None:
    if params.get("temperature") != 0 and params.get("beam_width", 1) == 1:
        params = {"seed": 7, **params}
    for prompt in (PROMPT, REPEATING):
        assert answered(engine, prompt, params) == expected(toy_llm, prompt, params)


def test_every_parameter_is_in_a_set() -> None:
    """But those that are refused, and those that every request of the test has."""
    known = {*NATIVE_PARAMS, *declarations.OWN_PARAMS}
    assert {name for params in SETS for name in params} == known


def test_minus_infinity_forbids_a_token(engine: Handle, toy_llm: LLM) -> None:
    (free,) = engine.generate(PROMPT, max_tokens=6, temperature=0)
    params = {"max_tokens": 6, "temperature": 0}
    text = json.dumps({**params, "logit_bias": {free.tokens[0]: "-inf"}})
    (bound,) = engine.generate(PROMPT, text)
    assert free.tokens[0] not in bound.tokens
    (same,) = expected(toy_llm, PROMPT, {**params, "logit_bias": {free.tokens[0]: -math.inf}})
    assert bound.tokens == same["tokens"]


def test_who_waits_for_all_leaves_the_others_what_they_wait_for(engine: Handle) -> None:
    claimed, other = (engine.submit(PROMPT, max_tokens=tokens, ignore_eos=True) for tokens in (ENDLESS, 20))
    engine.wait(claimed, 0)
    heard, open_completions = set(), 1
    while open_completions:
        news = engine.wait(0)
        heard |= {number for number, *_ in news}
        open_completions = news[-1][2]
    assert heard == {other}
    assert engine.cancel(claimed)
    while engine.wait(claimed)[-1][2]:
        pass


@pytest.mark.parametrize(
    "speculative", ["ngram", {"method": "suffix", "tokens": 3, "min_match": 2}], ids=["ngram", "suffix"]
)
def test_proposals_change_nothing(
    library: Library, engine: Handle, toy_engine: Path, speculative: str | dict[str, Any]
) -> None:
    params = {"max_tokens": 60, "temperature": 0, "ignore_eos": True, "logprobs": 0}
    with library.open(toy_engine, kv_cache_memory="32MiB", speculative=speculative) as proposing:
        assert answered(proposing, REPEATING, params) == answered(engine, REPEATING, params)
        # How many ngram proposes is left to the engine, which may find that none pay.
        assert speculative == "ngram" or proposing.json("tw_stats")["draft_tokens"] > 0
        assert proposing.json("tw_facts")["options"]["speculative"]["min_match"] == 2


def test_company_changes_nothing(engine: Handle) -> None:
    params: dict[str, Any] = {"max_tokens": 30, "seed": 3, "logprobs": 1}
    alone = answered(engine, PROMPT, params)
    others = [engine.submit([token] * 40, max_tokens=60, ignore_eos=True) for token in range(8)]
    assert answered(engine, PROMPT, params) == alone
    for other in others:
        while engine.wait(other)[-1][2]:
            pass


def test_max_tokens_null_is_the_room_that_is_left(library: Library, tmp_path: Path) -> None:
    """That of the model's length, and that of the cache where it is less, for one and for several completions."""
    path = write_toy_engine(tmp_path / "engine")
    params = {"max_tokens": None, "temperature": 0, "ignore_eos": True}
    for blocks, n in ((64, 1), (3, 1), (4, 3)):
        memory = blocks * json.loads((path / "config.json").read_text())["limits"]["kv_block_bytes"]
        with library.open(path, kv_cache_memory=memory) as engine, LLM(path, kv_cache_memory=memory, threads=1) as llm:
            ours, theirs = answered(engine, PROMPT, {**params, "n": n}), expected(llm, PROMPT, {**params, "n": n})
            assert ours == theirs


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ("{", "the parameters must be JSON"),
        ("[1]", "must be an object of JSON, got [1]"),
        ('{"n": 1, "n": 2}', 'must have each key once, got "n" twice'),
        ('{"a": ' + "[" * 40 + "]" * 40 + "}", "must not be nested deeper than 32"),
        ('{"max_token": 3}', 'parameters must be those of SamplingParams, got "max_token"'),
        ('{"n": 1.5}', "n must be a whole number"),
        ('{"n": true}', "n must be a whole number"),
        ('{"n": 0}', "n, the completions, must be at least 1"),
        ('{"max_tokens": 0}', "max_tokens must be a whole number from 1"),
        ('{"max_tokens": 99999999999999999999}', "max_tokens must be a whole number"),
        ('{"temperature": "hot"}', 'temperature must be a number, got "hot"'),
        ('{"temperature": -1}', "temperature must be 0 or in"),
        ('{"temperature": NaN}', "must be JSON"),
        ('{"top_p": null}', "top_p must be a number, got null"),
        ('{"seed": -1}', "seed must be a whole number from 0 to 2**64 - 1"),
        ('{"ignore_eos": 1}', "ignore_eos must be true or false"),
        ('{"stop_token_ids": [257]}', "stop token ids must be in [0, 257)"),
        ('{"stop_token_ids": [' + "1," * 256 + "1]}", "must be an array of at most 256 token ids, got an array of 257"),
        ('{"logit_bias": {"x": 1}}', "keys of logit_bias must be token ids"),
        ('{"logit_bias": {"1": "inf"}}', "a number of logit_bias must be a number"),
        ('{"logit_bias": {"1": 1, "01": 2}}', "logit_bias must have each token once, got 1 twice"),
        ('{"bad_words": ["word"]}', "this interface has no tokenizer"),
        ('{"bad_words": [[]]}', "must have at least one token"),
        ('{"dry_multiplier": 1}', "dry_sequence_breakers must be []"),
        ('{"early_stopping": true}', "early_stopping must be left out without a beam_width above 1"),
        ('{"beam_width": 2, "top_k": 5}', "top_k must be left out with a beam_width above 1"),
        ('{"beam_width": 2, "n": 3}', "n must be at most beam_width"),
        ('{"timeout": -1}', "timeout must be a number of seconds, 0 or more"),
        ('{"cache_salt": ""}', "cache_salt must be a text of 1 to 256 characters"),
        ('{"cache_salt": "\\u0000x"}', "cache_salt must not begin with the character 0"),
        ('{"truncate_prompt_tokens": 0}', "truncate_prompt_tokens must be a whole number from 1"),
    ],
)
def test_wrong_parameters_are_refused(engine: Handle, params: str, says: str) -> None:
    with pytest.raises(CallError) as raised:
        engine.submit(PROMPT, params)
    assert raised.value.kind == "InvalidRequestError"
    assert says in raised.value.message
    assert len(raised.value.message) < 600


@pytest.mark.parametrize(("tokens", "kind"), [
    ([], "InvalidRequestError"), ([257], "InvalidRequestError"), ([-1], "InvalidRequestError"),
    ([1] * (ENDLESS + 128), "PromptTooLongError"),
])  # fmt: skip
def test_impossible_prompts_are_refused(engine: Handle, tokens: list[int], kind: str) -> None:
    with pytest.raises(CallError) as raised:
        engine.submit(tokens)
    assert raised.value.kind == kind


@pytest.mark.parametrize("name", declarations.REFUSED_PARAMS)
def test_parameters_of_python_alone_are_refused_with_the_reason(engine: Handle, name: str) -> None:
    with pytest.raises(CallError, match=rf"{name} must be left out of the C interface") as raised:
        engine.submit(PROMPT, **{name: True})
    assert declarations.REFUSED_PARAMS[name] in raised.value.message


@pytest.mark.parametrize("name", declarations.REFUSED_OPTIONS)
def test_options_of_python_alone_are_refused_with_the_reason(library: Library, toy_engine: Path, name: str) -> None:
    with pytest.raises(CallError, match=rf"{name} must be left out of the C interface") as raised:
        library.open(toy_engine, **{name: True})
    assert declarations.REFUSED_OPTIONS[name] in raised.value.message


def test_the_tables_are_those_of_python() -> None:
    path = ROOT / declarations.PATH
    assert path.read_text() == declarations.render(), "run python -m tensorwright.runtime.c_interface.declarations"
    params = [*NATIVE_PARAMS, *declarations.OWN_PARAMS, *declarations.REFUSED_PARAMS]
    assert sorted(params) == sorted(field.name for field in fields(SamplingParams))
    options = [*declarations.NATIVE_OPTIONS, *declarations.OWN_OPTIONS, *declarations.REFUSED_OPTIONS]
    assert sorted(options) == sorted(declarations.engine_options())


def test_every_status_stands_for_a_class_of_errors() -> None:
    source = (ROOT / "runtime/c_interface/tensorwright.cc").read_text()
    table = source[source.index("kStatuses[] = {") : source.index("tw_status status_of")]
    named = re.findall(r'\{"(\w+)", (TW_\w+)\}', table)
    header = (ROOT / "runtime/c_interface/include/tensorwright.h").read_text()
    statuses = re.findall(r"^  (TW_\w+) = \d+,?", header, re.MULTILINE)
    assert all(hasattr(errors, name) for name, _ in named)
    ours = {"TW_OK", "TW_INVALID_ARGUMENT", "TW_CLOSED", "TW_OTHER"}
    assert {status for status in statuses if "FINISH" not in status} == ours | {status for _, status in named}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_batch": 4}, 'options must be keywords of LLM that this interface has, got "max_batch"'),
        ({"max_batch_size": 0}, "max_batch_size must be at least 1"),
        ({"max_batch_size": 8, "max_num_tokens": 4}, "max_num_tokens must be at least max_batch_size 8"),
        ({"load": "mmap"}, 'load must be one of map, copy, got "mmap"'),
        ({"numa": "split"}, "numa must be auto or off with load 'map', got 'split'"),
        ({"kv_cache_memory": "5 1 2MiB"}, 'kv_cache_memory must be a positive number or a text like "512MiB"'),
        ({"kv_cache_memory": ".5GiB"}, 'kv_cache_memory must be a positive number or a text like "512MiB"'),
        ({"kv_cache_memory": "1.GiB"}, 'kv_cache_memory must be a positive number or a text like "512MiB"'),
        ({"itl_goal": "5 0ms"}, 'itl_goal must be a positive number or a text like "50ms"'),
        ({"kv_cache_memory": "much"}, 'kv_cache_memory must be a positive number or a text like "512MiB"'),
        ({"kv_cache_memory": 10}, "kv_cache_memory must hold one block"),
        ({"kv_cache_memory": "900TiB"}, "must be at most the available memory"),
        ({"itl_goal": "soon"}, 'itl_goal must be a positive number or a text like "50ms"'),
        ({"threads": 5000}, "threads"),
        ({"max_queue_size": None}, "max_queue_size must be a whole number"),
        ({"speculative": "draft"}, "the method of speculative must be one of ngram, suffix"),
        ({"speculative": {"method": "ngram", "remembered": 5000}}, "what method ngram takes"),
        (
            {"speculative": {"method": "suffix", "tokens": 17}},
            "speculative: tokens must be a whole number from 1 to",
        ),
    ],
)
def test_wrong_options_are_refused(library: Library, toy_engine: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(CallError) as raised:
        library.open(toy_engine, **options)
    assert says in raised.value.message
    assert raised.value.kind in ("InvalidOptionError", "OutOfMemoryError")


def altered(path: Path, **config: Any) -> Path:
    """A toy engine whose config.json says something else, with true checksums."""
    write_toy_engine(path)
    (path / "config.json").write_text(json.dumps({**json.loads((path / "config.json").read_text()), **config}))
    seal(path)
    return path


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"format": "other"}, "not an engine"),
        ({"format_version": 99}, "format version 99, this library reads 1"),
        ({"target": "onnx"}, "the C interface runs engines of target cpu, this one is of target 'onnx'"),
        ({"build_options": {"tensor_parallel": 2}}, "engines of one rank, this one has tensor_parallel 2"),
        ({"pooling": {"task": "embed"}}, "this engine was built for embeddings or scores"),
        ({"limits": {"max_seq_len": 64, "block_size": 32, "kv_block_bytes": 16384}}, "files of two builds are mixed"),
        ({"limits": {"block_size": 32, "kv_block_bytes": 16384}}, "limits.max_seq_len must be a positive"),
        ({"model": {"vocab_size": 257, "eos_token_ids": [-1]}}, "end-of-sequence tokens must be token ids"),
    ],
)
def test_engines_of_another_kind_are_refused(
    library: Library, tmp_path: Path, config: dict[str, Any], says: str
) -> None:
    with pytest.raises(CallError) as raised:
        library.open(altered(tmp_path / "engine", **config))
    assert says in raised.value.message
    assert str(tmp_path) in raised.value.message
    assert raised.value.kind == ("TaskError" if "pooling" in config else "EngineError")


def test_damaged_folders_are_refused(library: Library, tmp_path: Path) -> None:
    def says(path: Path, words: str) -> None:
        with pytest.raises(CallError) as raised:
            library.open(path)
        assert raised.value.kind == "EngineError"
        assert words in raised.value.message

    says(tmp_path / "nothing", "no such engine directory; build one with: build-engine MODEL")
    (tmp_path / "file").write_text("")
    says(tmp_path / "file", "an engine is a directory, this is a file")
    says(tmp_path, "not an engine, it has no config.json")
    path = write_toy_engine(tmp_path / "engine")
    plan, sums = path / "cpu/plan.bin", path / "checksums.txt"
    whole, text = plan.read_bytes(), sums.read_text()
    plan.write_bytes(whole[:-8])
    says(path, f"truncated, it has {len(whole) - 8} bytes and must have {len(whole)}")
    seal(path)
    says(path, "plan.bin")
    plan.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    sums.write_text(text)
    says(path, "altered, its checksum does not match checksums.txt")
    plan.unlink()
    says(path, "missing; build the engine again")
    plan.write_bytes(whole)
    sums.write_text(text.replace("cpu/plan.bin", "../plan.bin"))
    says(path, "truncated or altered (its last line must cover the lines above)")
    says(write_engine(tmp_path / "bytes", engine_config()), "plan.bin")


def test_a_full_queue_is_told_and_empties(library: Library, toy_engine: Path) -> None:
    with library.open(toy_engine, kv_cache_memory="32MiB", max_batch_size=1, max_queue_size=2) as engine:
        requests = [engine.submit(PROMPT, max_tokens=ENDLESS, ignore_eos=True) for _ in range(3)]
        with pytest.raises(CallError, match=r"QueueFullError: .*at most 3 requests"):
            engine.submit(PROMPT)
        for request in requests:
            assert engine.cancel(request)
            while engine.wait(request)[-1][2]:
                pass
            assert not engine.cancel(request)
        assert engine.generate(PROMPT, max_tokens=2, ignore_eos=True)[0].finish == "length"


def test_a_request_is_over_once_its_last_event_was_fetched(engine: Handle) -> None:
    number = engine.submit(PROMPT, max_tokens=1)
    while engine.wait(number)[-1][2]:
        pass
    for unknown in (number, number + 1000, -5):
        with pytest.raises(CallError, match=r"InvalidRequestError: .*which has ended or never was"):
            engine.wait(unknown)


def test_a_drained_engine_has_all_that_was_under_way(library: Library, toy_engine: Path) -> None:
    with library.open(toy_engine, kv_cache_memory="32MiB") as engine:
        expected = engine.generate(PROMPT, max_tokens=20, ignore_eos=True, temperature=0)
        number = engine.submit(PROMPT, max_tokens=20, ignore_eos=True, temperature=0)
        engine.drain()
        [(_, _, _, made)] = engine.wait(number)
        assert (made.tokens, made.finish) == (expected[0].tokens, "length")
        with pytest.raises(CallError, match="EngineStoppedError"):
            engine.submit(PROMPT)


def test_of_two_that_close_an_engine_one_is_told(library: Library, toy_engine: Path) -> None:
    engine, told = library.open(toy_engine, kv_cache_memory="32MiB"), []
    engine.submit(PROMPT, max_tokens=ENDLESS, ignore_eos=True)

    def close(drain: float) -> None:
        try:
            engine.close(drain)
        except CallError as error:
            told.append(error.status)

    threads = [threading.Thread(target=close, args=(drain,)) for drain in (-1, 0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert told == [CLOSED]


def test_a_closed_handle_means_nothing(library: Library, toy_engine: Path) -> None:
    engine = library.open(toy_engine, kv_cache_memory="32MiB")
    engine.close()
    for act in (engine.close, lambda: engine.wait(0), lambda: engine.submit(PROMPT), lambda: engine.json("tw_stats")):
        with pytest.raises(CallError) as raised:
            act()
        assert raised.value.status == CLOSED
    for never_opened in (c_void_p(0), c_void_p(1 << 40)):
        with pytest.raises(CallError, match="the engine must be open"):
            Handle(library, never_opened).json("tw_facts")


def test_facts_and_statistics(library: Library, engine: Handle, toy_llm: LLM, toy_engine: Path) -> None:
    facts = engine.json("tw_facts")
    assert facts["abi_version"] == library.tw.tw_abi_version() == 1
    assert facts["version"].encode() == library.tw.tw_version()
    assert facts["cache"]["vocab_size"] == facts["model"]["vocab_size"] == 257
    assert facts["limits"]["max_seq_len"] == toy_llm.max_seq_len
    assert facts["eos_token_ids"] == toy_llm.engine.eos_token_ids
    assert facts["options"]["threads"] == 1
    assert facts["options"]["max_batch_size"] == 64
    assert facts["sampling_params"]["max_tokens"] == SamplingParams().max_tokens
    assert facts["refused_sampling_params"] == declarations.REFUSED_PARAMS
    assert facts["refused_options"] == declarations.REFUSED_OPTIONS
    ours, theirs = engine.json("tw_stats"), toy_llm.get_stats()
    assert ours.keys() - theirs.keys() == {"stopped", "cause"}
    assert theirs.keys() - ours.keys() == {"stalled_seconds"}
    assert (ours["stopped"], ours["used_blocks"]) == (False, 0)
    assert ours["groups"][0].keys() == theirs["groups"][0].keys()


def test_the_models_own_defaults_are_told(library: Library, tmp_path: Path) -> None:
    path = write_toy_engine(tmp_path / "engine")
    (path / "generation_config.json").write_text('{"temperature": 0.6, "max_new_tokens": 99, "eos_token_id": [4, 900]}')
    seal(path)
    with library.open(path) as engine:
        facts = engine.json("tw_facts")
    assert facts["model_sampling_params"] == {**facts["sampling_params"], "temperature": 0.6, "max_tokens": 99}
    assert facts["eos_token_ids"] == [4], "ids beyond the vocabulary are left out"


def test_a_fork_is_told_that_it_has_no_engine(library: Library, toy_engine: Path) -> None:
    with library.open(toy_engine, kv_cache_memory="8MiB") as engine:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                engine.json("tw_stats")
            except CallError as error:
                code = 0 if error.kind == "ForkedEngineError" else 2
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert engine.generate(PROMPT, max_tokens=1)[0].tokens


def test_null_arguments_have_defaults(library: Library, tmp_path: Path) -> None:
    handle, path = c_void_p(), write_toy_engine(tmp_path / "engine")
    library.call("tw_open", str(path).encode(), None, byref(handle))
    with Handle(library, handle) as engine:
        assert engine.json("tw_facts")["options"]["kv_cache_memory"] > 0
        assert library.tw.tw_stats(engine.handle, None, None) == 1
    library.call("tw_close", None, c_double(0))
