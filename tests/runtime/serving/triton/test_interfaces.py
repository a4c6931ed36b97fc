"""Tensors to SamplingParams, on plain numpy: every input of the three interfaces, and the refusals."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from support.fake_runtime import byte_tokenizer
from support.triton_models import as_inputs
from tensorwright import SamplingParams
from tensorwright.errors import InvalidRequestError
from tensorwright.runtime.serving.triton import refusals
from tensorwright.runtime.serving.triton.interfaces import INTERFACES
from tensorwright.runtime.serving.triton.replies import Job
from tensorwright.runtime.serving.triton.tensors import KINDS, NUMPY, Tensor, split_rows
from tensorwright.runtime.text.tokenizer import Tokenizer

TEXT = {"text_input": "hello", "max_tokens": 5}
TOKENS = {"input_ids": [1, 2, 3], "input_lengths": 3, "request_output_len": 5}
LLMAPI = {"text_input": "hello"}
SCHEDULING = {"timeout": 1.5, "deadline": 2.5, "priority": 3, "cache_salt": "mine"}


def engine(tokenizer: bool = True) -> Any:
    known = Tokenizer(byte_tokenizer()) if tokenizer else None
    return SimpleNamespace(tokenizer=known, vocab_size=257, path=SimpleNamespace(name="engine"))


def read(
    interface: str,
    values: dict[str, Any],
    batched: bool = True,
    tokenizer: bool = True,
    defaults: dict[str, Any] | None = None,
) -> Job:
    (row,) = split_rows(as_inputs(values, batched), batched)
    INTERFACES[interface].check(row, batched)
    return INTERFACES[interface].read(row, engine(tokenizer), False, defaults or {})


@pytest.mark.parametrize("interface", ["text", "tokens", "llmapi"])
@pytest.mark.parametrize(
    ("defaults", "values", "fields"),
    [
        ({"temperature": 0.5, "top_k": 9, "min_p": 0.25}, {}, {"temperature": 0.5, "top_k": 9, "min_p": 0.25}),
        ({"temperature": 0.5, "max_tokens": 99}, {"temperature": 0.25}, {"temperature": 0.25}),
        ({"temperature": 0.5, "top_p": 0.5}, {"top_k": 3}, {"temperature": 0.5, "top_p": 0.5, "top_k": 3}),
        ({"top_p": 0.5}, {"temperature": 0.0}, {"top_p": 0.5, "temperature": 0.0}),
        ({"repetition_penalty": 1.5}, {}, {"repetition_penalty": 1.5, "temperature": 0.0}),
    ],
)
def test_a_models_defaults_hold_for_what_is_not_sent(
    interface: str, defaults: dict[str, Any], values: dict[str, Any], fields: dict[str, Any]
) -> None:
    base = {"text": TEXT, "tokens": TOKENS, "llmapi": LLMAPI}[interface]
    name = {"tokens": "runtime_", "llmapi": "sampling_param_"}.get(interface, "")
    named = {f"{name if interface == 'llmapi' or key != 'temperature' else ''}{key}": v for key, v in values.items()}
    params = read(interface, {**base, **named}, interface != "llmapi", defaults=defaults).params
    assert {field: getattr(params, field) for field in fields} == fields
    assert params.max_tokens == (32 if interface == "llmapi" else 5)


def spell(text: str) -> list[int]:
    return Tokenizer(byte_tokenizer()).encode(text, add_special_tokens=False)


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize(
    ("values", "fields"),
    [
        ({}, {"temperature": 0.0}),
        ({"temperature": 0.5}, {"temperature": 0.0}),  # without top_k and top_p TensorRT-LLM is greedy
        ({"temperature": 0.5, "top_k": 4}, {"temperature": 0.5, "top_k": 4}),
        ({"temperature": 0.5, "top_k": 0, "top_p": 0.25}, {"temperature": 0.5, "top_p": 0.25}),
        ({"top_k": 3, "top_p": 0.0}, {"top_k": 3}),
        ({"seed": np.array([2**63 - 1], np.uint64)}, {"temperature": 0.0, "seed": 2**63 - 1}),
        ({"num_return_sequences": 2, "min_tokens": 3}, {"temperature": 0.0, "n": 2, "min_tokens": 3}),
        ({"repetition_penalty": 1.5}, {"temperature": 0.0, "repetition_penalty": 1.5}),
        (
            {"presence_penalty": 0.5, "frequency_penalty": -0.5},
            {"temperature": 0.0, "presence_penalty": 0.5, "frequency_penalty": -0.5},
        ),
        ({"end_id": 9}, {"temperature": 0.0, "stop_token_ids": [9], "ignore_eos": True}),
        ({"end_id": -1, "pad_id": 0}, {"temperature": 0.0}),
        ({"return_log_probs": True}, {"temperature": 0.0, "logprobs": 0}),
        (SCHEDULING, {"temperature": 0.0} | SCHEDULING),
        ({"cache_salt": ""}, {"temperature": 0.0}),
        ({"bad_words": ["a", ""], "stop_words": [""]}, {"temperature": 0.0, "bad_words": ["a"]}),
        ({"stop_words": ["x", "yz"]}, {"temperature": 0.0, "stop": ["x", "yz"]}),
        (
            {"embedding_bias_words": ["a", "ab"], "embedding_bias_weights": [1.0, 2.0]},
            {"temperature": 0.0, "logit_bias": {spell("a")[0]: 3.0, spell("b")[0]: 2.0}},
        ),
        ({"beam_width": 1, "length_penalty": 1.0, "num_draft_tokens": 0}, {"temperature": 0.0}),
        ({"beam_width": 3}, {"beam_width": 3, "n": 3, "length_penalty": 0.0, "early_stopping": True}),
        (
            {
                "beam_width": 3,
                "num_return_sequences": 2,
                "length_penalty": 1.5,
                "early_stopping": False,
                "top_k": 1,
                "temperature": 1.0,
                "return_log_probs": True,
            },
            {"beam_width": 3, "n": 2, "length_penalty": 1.5, "logprobs": 0},
        ),
    ],
)
def test_text_inputs(values: dict[str, Any], fields: dict[str, Any], batched: bool) -> None:
    job = read("text", TEXT | values, batched)
    assert job.prompt == "hello"
    assert job.params == SamplingParams(max_tokens=5, include_stop_str_in_output=True, **fields)
    assert read("both", TEXT | values, batched).params == job.params


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize(
    ("values", "fields"),
    [
        ({}, {}),
        ({"runtime_top_k": 7, "temperature": 0.5}, {"top_k": 7, "temperature": 0.5}),
        ({"runtime_top_p": 0.5}, {"top_p": 0.5, "temperature": 1.0}),
        ({"end_id": 4}, {"stop_token_ids": [4], "ignore_eos": True}),
        (
            {"end_id": 4, "stop_words_list": np.array([[8, 9], [1, 2]], np.int32)},
            {"stop_token_ids": [4, 8, 9], "ignore_eos": True},
        ),
        (
            {"stop_words_list": np.array([[*spell("ab"), 7], [2, 3, -1]], np.int32)},
            {"stop_token_ids": [7], "stop": ["ab"], "detokenize": True, "skip_special_tokens": False},
        ),
        ({"stop_words_list": np.array([[0, 0], [-1, -1]], np.int32)}, {}),  # none
        ({"bad_words_list": np.array([[5, 6, 7, 0], [2, 3, -1, -1]], np.int32)}, {"bad_words": [[5, 6], [7]]}),
        ({"embedding_bias": [0.0] * 256 + [-2.0]}, {"logit_bias": {256: -2.0}}),
        ({"runtime_top_p_decay": 1.0, "runtime_top_p_min": 0.1, "len_penalty": 1.0, "early_stopping": False}, {}),
        (
            {"beam_width": 4, "len_penalty": 0.5},
            {
                "beam_width": 4,
                "n": 4,
                "length_penalty": 0.5,
                "early_stopping": True,
                "temperature": 1.0,
            },
        ),
    ],
)
def test_token_inputs(values: dict[str, Any], fields: dict[str, Any], batched: bool) -> None:
    job = read("tokens", TOKENS | values, batched)
    assert job.prompt == {"prompt_token_ids": [1, 2, 3]}
    expected: dict[str, Any] = {"max_tokens": 5, "temperature": 0.0, "detokenize": False, **fields}
    assert job.params == SamplingParams(**expected)
    assert read("both", TOKENS | values, batched).params == job.params


def test_input_lengths_cut_what_fills_up_input_ids() -> None:
    assert read("tokens", TOKENS | {"input_lengths": 2}).prompt == {"prompt_token_ids": [1, 2]}
    for length in (0, 4):
        with pytest.raises(InvalidRequestError, match=f"'input_lengths' must be from 1 to 3.*got {length}"):
            read("tokens", TOKENS | {"input_lengths": length})


@pytest.mark.parametrize(
    ("values", "fields"),
    [
        ({}, {"temperature": 0.0, "max_tokens": 32}),
        ({"sampling_param_max_tokens": 4}, {"temperature": 0.0, "max_tokens": 4}),
        ({"sampling_param_temperature": 0.5}, {"temperature": 0.5, "max_tokens": 32}),
        ({"sampling_param_temperature": 0.0, "sampling_param_top_k": 9}, {"temperature": 0.0, "max_tokens": 32}),
        (
            {"sampling_param_top_k": 9, "sampling_param_top_p": 0.5, "sampling_param_seed": 3},
            {"top_k": 9, "top_p": 0.5, "seed": 3, "max_tokens": 32},
        ),
        (
            {"sampling_param_frequency_penalty": 0.5, "sampling_param_presence_penalty": 0.25},
            {"temperature": 0.0, "max_tokens": 32, "frequency_penalty": 0.5, "presence_penalty": 0.25},
        ),
        ({"sampling_param_stop": ["a", "b"]}, {"temperature": 0.0, "max_tokens": 32, "stop": ["a", "b"]}),
        ({"return_cumulative_logprob": True}, {"temperature": 0.0, "max_tokens": 32, "logprobs": 0}),
        ({"sampling_param_best_of": 1}, {"temperature": 0.0, "max_tokens": 32}),
        (SCHEDULING, {"temperature": 0.0, "max_tokens": 32} | SCHEDULING),
    ],
)
def test_llmapi_inputs(values: dict[str, Any], fields: dict[str, Any]) -> None:
    assert read("llmapi", LLMAPI | values, batched=False).params == SamplingParams(**fields)


def many_words(count: int, length: int) -> np.ndarray:
    """Of TensorRT-LLM's form, [2, n]."""
    ends = np.full(count * length, -1, np.int32)
    ends[:count] = np.arange(1, count + 1) * length
    return np.stack([np.full(count * length, 97, np.int32), ends])


WRONG = [
    ("text", TEXT | {"beam_width": 2, "stream": True}, "'stream' must be false with beam_width 2"),
    ("text", TEXT | {"beam_width": 2, "num_return_sequences": 3}, "n must be at most beam_width, which is 2, got 3"),
    ("text", TEXT | {"beam_width": 2, "top_k": 5}, "top_k must be left out with a beam_width above 1"),
    ("text", TEXT | {"beam_width": 2, "stop_words": ["x"]}, "'stop_words': SamplingParams: stop must be left out"),
    ("text", TEXT | {"beam_width": -1}, "beam_width must be a positive integer, got -1"),
    (
        "tokens",
        TOKENS | {"beam_width": 2, "len_penalty": 200.0},
        "'len_penalty': SamplingParams: length_penalty must be",
    ),
    ("text", TEXT | {"temperature": -1.0}, "temperature must be 0 or from"),
    ("tokens", TOKENS | {"beam_width": 2, "beam_search_diversity_rate": 0.5}, "'beam_search_diversity_rate' cannot be"),
    ("text", TEXT | {"num_draft_tokens": 2}, "'num_draft_tokens' cannot be served: draft tokens"),
    ("text", TEXT | {"return_context_logits": True}, "'return_context_logits' cannot be served: logits"),
    ("text", TEXT | {"embedding_bias_words": ["a"]}, "must be as many, got 1 and 0"),
    ("text", TEXT | {"guided_decoding_guide": "x"}, "needs 'guided_decoding_guide_type'"),
    ("text", TEXT | {"guided_decoding_guide_type": "structural_tag"}, "must be one of json, json_schema, regex"),
    ("text", TEXT | {"guided_decoding_guide_type": "regex"}, "required by guide type 'regex'"),
    ("text", TEXT | {"end_id": -5}, "input 'end_id' must be a token id below 257, or -1 for none, got -5"),
    ("tokens", TOKENS | {"end_id": 257}, "input 'end_id' must be a token id below 257, or -1 for none, got 257"),
    ("text", TEXT | {"end_id": "</s>"}, "input 'end_id' has the wrong type, object: it must be INT32"),
    ("tokens", TOKENS | {"end_id": [1, 2]}, "input 'end_id' must hold one value per prompt, got 2"),
    ("text", TEXT | {"pad_id": -5}, "input 'pad_id' must be a token id, or -1 for none, got -5"),
    (
        "tokens",
        TOKENS | {"input_ids": np.ones((2, 3), np.int32)},
        "'input_ids' must be INT32 of shape [n] per prompt, got [2, 3]",
    ),
    ("llmapi", LLMAPI | {"sampling_param_best_of": -1}, "'sampling_param_best_of' must be 1, got -1"),
    ("llmapi", LLMAPI | {"sampling_param_max_tokens": 0}, "input 'sampling_param_max_tokens': SamplingParams: max_"),
    ("tokens", TOKENS | {"runtime_top_p_decay": 0.5}, "'runtime_top_p_decay' cannot be served"),
    ("tokens", TOKENS | {"draft_input_ids": [1]}, "'draft_input_ids' cannot be served: draft tokens"),
    ("tokens", TOKENS | {"embedding_bias": [1.0, 2.0]}, "'embedding_bias' must hold one number per token, 257, got 2"),
    ("tokens", TOKENS | {"stop_words_list": [1, 2]}, "'stop_words_list' must be INT32 of shape [2, n]"),
    ("tokens", TOKENS | {"bad_words_list": np.array([[1, 2], [2, 1]], np.int32)}, "the ends of words"),
    ("tokens", TOKENS | {"bad_words_list": np.array([[1, 2], [3, -1]], np.int32)}, "from 1 to at most 2"),
    ("tokens", TOKENS | {"stop_words_list": np.array([[1, 999], [2, -1]], np.int32)}, "must hold ids below 257"),
    (
        "tokens",
        TOKENS | {"stop_words_list": np.array([[spell("é")[0]] * 2, [2, -1]], np.int32)},
        "words that are whole text",
    ),
    ("text", TEXT | {"stop_words": ["a"] * 65}, "'stop_words' must hold at most 64 values per prompt, got 65"),
    ("text", TEXT | {"stop_words": ["a" * 257]}, "stop must have at most 256 characters, got 257"),
    ("text", TEXT | {"bad_words": ["a"] * 1025}, "'bad_words' must hold at most 1024 values"),
    (
        "text",
        TEXT | {"embedding_bias_words": ["a"] * 1025, "embedding_bias_weights": [1.0] * 1025},
        "'embedding_bias_words' must hold at most 1024",
    ),
    (
        "text",
        TEXT | {"embedding_bias_words": ["a" * 65], "embedding_bias_weights": [1.0]},
        "'embedding_bias_words' must hold at most 64 tokens of a word per prompt, got 65",
    ),
    (
        "text",
        TEXT | {"embedding_bias_words": ["a" * 257], "embedding_bias_weights": [1.0]},
        "at most 256 characters of a word",
    ),
    ("tokens", TOKENS | {"input_ids": np.ones(2**18 + 1, np.int32)}, "'input_ids' must hold at most 262144 values"),
    ("tokens", TOKENS | {"stop_words_list": many_words(65, 2)}, "at most 64 words of several tokens"),
    ("tokens", TOKENS | {"stop_words_list": many_words(257, 1)}, "at most 256 words"),
    ("tokens", TOKENS | {"stop_words_list": many_words(1, 257)}, "at most 256 tokens of a word"),
    ("tokens", TOKENS | {"bad_words_list": many_words(1025, 2)}, "at most 1024 words"),
    ("tokens", TOKENS | {"bad_words_list": many_words(1, 65)}, "at most 64 token ids, got 65"),
    ("tokens", TOKENS | {"bad_words_list": many_words(1, 2**16 + 1)}, "at most 131072 numbers"),
    ("llmapi", LLMAPI | {"sampling_param_stop": ["a"] * 65}, "'sampling_param_stop' must hold at most 64 values"),
    (
        "text",
        TEXT | {"guided_decoding_guide_type": "x" * 1000},
        "must be one of json, json_schema, regex, ebnf_grammar",
    ),
    ("llmapi", {"streaming": True}, "'text_input' is required by the LLM-API interface"),
    ("llmapi", LLMAPI | {"sampling_param_best_of": 2}, "'sampling_param_best_of' must be 1, got 2"),
    ("llmapi", LLMAPI | {"lora_name": "x"}, "'lora_name' cannot be served: LoRA"),
]


@pytest.mark.parametrize(("interface", "values", "message"), WRONG, ids=[message[:40] for *_, message in WRONG])
def test_what_cannot_be_served_is_refused_by_name(interface: str, values: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        read(interface, values, batched=interface != "llmapi")
    assert message in str(caught.value)
    assert len(str(caught.value)) < 500


def test_a_refused_input_is_not_read_as_a_whole() -> None:
    (row,) = split_rows(as_inputs(TEXT, True) | {"lora_weights": np.broadcast_to(np.float16(1), (1, 2**40))}, True)
    with pytest.raises(InvalidRequestError, match="'lora_weights' cannot be served"):
        INTERFACES["text"].read(row, engine(), False, {})


def test_more_parameters_than_any_client_has_are_refused() -> None:
    INTERFACES["text"].check_parameters([f"key-{number}" for number in range(100)])
    with pytest.raises(InvalidRequestError, match="at most 100 parameters, got 101"):
        INTERFACES["text"].check_parameters([f"key-{number}" for number in range(101)])
    with pytest.raises(InvalidRequestError, match="name of a parameter must have at most 1024 characters"):
        INTERFACES["text"].check_parameters(["max_token" + "s" * 1024])


def refused(interface: str, values: dict[str, Any], name: str) -> bool:
    """By name, that is."""
    try:
        read(interface, values, batched=False)
    except InvalidRequestError as error:
        return name in str(error)
    return False


@pytest.mark.parametrize("interface", ["text", "tokens", "llmapi"])
def test_every_input_is_read_or_refused(interface: str) -> None:
    """A value of its type in each declared input: there is none that is taken and forgotten."""
    without_effect = {"pad_id", "stop", *refusals.WITHOUT_EFFECT}  # the model itself sees stop
    plain_values = {"text": TEXT, "tokens": TOKENS, "llmapi": LLMAPI}[interface]
    for tensor in INTERFACES[interface].inputs:
        if tensor.name in plain_values or tensor.name in without_effect:
            continue
        value: Any = np.full([2 if size == -1 else size for size in tensor.dims], 2).astype(NUMPY[tensor.dtype])
        if tensor.dtype == "STRING":
            value = np.full(tensor.dims if -1 not in tensor.dims else (2,), b"words", np.object_)
        elif tensor.name == "runtime_top_p" or tensor.name.endswith("top_p"):
            value = np.array([0.5], np.float32)
        elif tensor.name.endswith("words_list"):
            value = np.array([[3], [1]], np.int32)
        elif tensor.name == "embedding_bias":
            value = np.ones(257, np.float32)
        elif tensor.name == "early_stopping":
            value = np.array([False])
        elif tensor.name.startswith("dry_"):  # whose defaults may be 2
            value = np.array([3], NUMPY[tensor.dtype])
        of_beams = tensor.name in ("early_stopping", "length_penalty", "len_penalty")
        base = plain_values | ({"beam_width": 2} if of_beams else {})
        plain = read(interface, base, batched=False)
        if refused(interface, base | {tensor.name: value}, tensor.name):
            continue
        job = read(interface, base | {tensor.name: value}, batched=False)
        changed = job.params != plain.params or vars(job.asked) != vars(plain.asked)
        heat = tensor.name == "temperature"  # alone it changes nothing, as in TensorRT-LLM
        assert changed or heat, f"{tensor.name} is taken and forgotten"


WRONG_TYPES = {"b": [[1]], "f": [["x"], [1]], "O": [[1]], "i": [["x"], [1.5], [True]], "u": [["x"], [1.5]]}
ODD = {"f": [np.nan, np.inf, -1.0, 1e30], "b": [], "i": [-(2**31), -5, -1, 0, 10**6, 2**31 - 1], "u": [0, 200], "O": []}


def oddest(tensor: Tensor) -> Iterator[Any]:
    """Of each wrong type, of wrong shapes, and of its own type what lies at the ends of it."""
    kind = np.dtype(NUMPY[tensor.dtype])
    one = tuple(1 if size == -1 else size for size in tensor.dims)
    yield from (as_inputs({"a": value}, False)["a"] for value in WRONG_TYPES[kind.kind])
    fill = b"x" if kind.kind == "O" else 1
    yield np.full((*one, 1), fill, kind)
    if tensor.dims == (1,):
        yield np.full((2,), fill, kind)
    with np.errstate(over="ignore"):  # what a half has no number for is infinite
        yield from [np.full(one, value).astype(kind) for value in ODD[kind.kind]]


def outcome(interface: str, values: dict[str, Any]) -> str:
    """Empty if it can be served, else why not."""
    try:
        read(interface, values, batched=interface != "llmapi")
    except InvalidRequestError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("interface", ["text", "tokens", "llmapi"])
def test_the_oddest_of_each_input_is_taken_or_refused_by_its_name(interface: str) -> None:
    one_token = {"input_ids": [1], "input_lengths": 1, "request_output_len": 5}
    base = {"text": TEXT, "tokens": one_token, "llmapi": LLMAPI}[interface]
    for tensor in INTERFACES[interface].inputs:
        for value in oddest(tensor):
            said = outcome(interface, base | {tensor.name: value})
            sound = value.dtype.kind in KINDS[tensor.dtype] and value.ndim == len(tensor.dims)
            named = f"'{tensor.name}'" in said or said.startswith(f"SamplingParams: {tensor.name} ")
            assert named or (sound and not said), f"{tensor.name}, {value!r}: {said or 'it was taken'}"


def test_every_refused_input_has_its_reason() -> None:
    for name in refusals._REFUSED:
        assert refusals._reason(name)


def test_rows_must_agree_on_the_batch() -> None:
    values = {"text_input": np.array([[b"a"], [b"b"]], np.object_), "max_tokens": np.array([[1]], np.int32)}
    with pytest.raises(InvalidRequestError, match="the same first dimension"):
        split_rows(values, batched=True)


def test_without_a_tokenizer_words_are_refused() -> None:
    words = {"stop_words_list": np.array([[3, 4], [2, -1]], np.int32)}
    with pytest.raises(InvalidRequestError, match="words of several tokens need a tokenizer"):
        read("tokens", TOKENS | words, tokenizer=False)
    assert read("tokens", TOKENS, tokenizer=False).params.detokenize is False
