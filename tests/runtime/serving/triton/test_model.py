"""The model on pico: the Python API's tokens under TensorRT-LLM's tensor names, and every way for a request to end."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.fake_triton import ModelConfig, Request, Sender, TritonError
from support.made_adapters import make_adapter, places_of
from support.snapshots import count_snapshots
from support.toy_engine import ENDLESS
from support.triton_models import as_inputs, load
from support.waiting import wait_until
from tensorwright import SamplingParams
from tensorwright.errors import InvalidOptionError
from tensorwright.runtime.serving.triton.interfaces import INTERFACES
from tensorwright.runtime.serving.triton.model import TritonPythonModel
from tensorwright.runtime.serving.triton.model_options import parse_options

Ask = Callable[..., Request]

PROMPT = "import os"
TOKENS = {"input_ids": [5, 6, 7], "input_lengths": 3, "request_output_len": 40, "streaming": True}
TOKENS_OF_LONG = ENDLESS // 2
LONG = {"max_tokens": TOKENS_OF_LONG, "min_tokens": TOKENS_OF_LONG}
"""Of the toy engine: a request that is sure to be alive while the test looks at it."""


def text_of(request: Request) -> str:
    return b"".join(response["text_output"][0] for response in request.sender.wait()).decode()


def error_of(request: Request) -> TritonError:
    assert request.sender.wait() == []
    (error,) = request.sender.errors
    return error


def wait_until_idle(model: TritonPythonModel) -> None:
    def idle() -> bool:
        stats = model.llm.get_stats()
        return not stats["running"] and not stats["waiting"]

    wait_until(idle, "an engine without work")


def test_text_is_that_of_the_python_api(model: TritonPythonModel, ask: Ask) -> None:
    expected = model.llm.generate(PROMPT, SamplingParams(max_tokens=12, temperature=0)).outputs[0].text
    assert text_of(ask(text_input=PROMPT, max_tokens=12)) == PROMPT + expected
    assert text_of(ask(text_input=PROMPT, max_tokens=12, exclude_input_in_output=True)) == expected
    streamed = ask(text_input=PROMPT, max_tokens=12, stream=True)
    assert text_of(streamed) == expected
    assert len(streamed.sender.responses) > 1


@pytest.mark.parametrize("shape", [{"text_input": PROMPT, "max_tokens": 40, "stream": True}, TOKENS])
def test_a_stream_does_not_copy_the_answer_for_each_token(
    ask: Ask, shape: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """But only of the whole, for the metrics."""
    copies = count_snapshots(monkeypatch)
    responses = ask(return_num_output_tokens=True, **shape).sender.wait()
    assert responses[-1]["num_output_tokens"].item() == 40
    assert set(copies) <= {40}  # they may come after the answer


CHAT = "<{{ messages[0].role }}>{{ messages[0].content }}\n{% if add_generation_prompt %}import{% endif %}"


def test_a_chat_template_takes_text_for_what_a_user_says(pico_engine: Path, tmp_path: Path) -> None:
    (tmp_path / "own.jinja").write_text(CHAT)
    model = load(pico_engine, chat_template=str(tmp_path / "own.jinja"))
    try:
        params = SamplingParams(max_tokens=6, temperature=0)
        expected = model.llm.chat([{"role": "user", "content": PROMPT}], params)
        assert expected.prompt == f"<user>{PROMPT}\nimport"
        ids = model.llm.generate({"prompt_token_ids": [5, 6, 7]}, params).outputs[0]
        asked = Request(as_inputs({"text_input": PROMPT, "max_tokens": 6}, True))
        plain = Request(as_inputs({"input_ids": [5, 6, 7], "input_lengths": 3, "request_output_len": 6}, True))
        model.execute([asked, plain])
        assert text_of(asked) == expected.prompt + expected.outputs[0].text
        (answer,) = plain.sender.wait()
        assert answer["output_ids"].ravel().tolist()[3:] == ids.token_ids
    finally:
        model.finalize()


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"chat_template": "no/where.jinja"}, "parameter 'chat_template': must be a readable file of UTF-8 text"),
        ({"chat_template": "default"}, "the name of a template (there is none)"),
        ({"chat_template": "default", "interface": "tokens"}, "'chat_template' needs an interface with text"),
    ],
)
def test_a_chat_template_that_cannot_be_is_refused_when_it_loads(
    pico_engine: Path, parameters: dict[str, str], words: str
) -> None:
    with pytest.raises(InvalidOptionError, match=re.escape(words)):
        load(pico_engine, **parameters)


def test_a_priority_above_the_models_is_refused(ask: Ask) -> None:
    error = str(error_of(ask(text_input=PROMPT, max_tokens=2, priority=1)))
    assert "'priority' must be at most 0 for this model (parameter 'max_priority' of its config.pbtxt)" in error
    assert text_of(ask(text_input=PROMPT, max_tokens=2, priority=-1)).startswith(PROMPT)


def test_a_deadline_that_cannot_be_met_is_an_error(ask: Ask) -> None:
    assert "deadline" in str(error_of(ask(text_input=PROMPT, max_tokens=2, deadline=0.0)))
    assert text_of(ask(text_input=PROMPT, max_tokens=2, deadline=1e6)).startswith(PROMPT)


@pytest.mark.parametrize(("written", "most"), [(None, 0), ("0", 0), ("7", 7)])
def test_the_most_a_priority_may_be_is_a_parameter(written: str | None, most: int) -> None:
    values = {"engine": "x"} | ({} if written is None else {"max_priority": written})
    config = {"parameters": {name: {"string_value": value} for name, value in values.items()}}
    assert parse_options(config).max_priority == most


def test_tokens_are_those_of_the_python_api(model: TritonPythonModel, ask: Ask, batched: bool) -> None:
    heat = float(np.float32(0.8))
    params = SamplingParams(max_tokens=9, temperature=heat, top_k=40, seed=7, logprobs=0)
    expected = model.llm.generate({"prompt_token_ids": [5, 6, 7]}, params).outputs[0]
    inputs: dict[str, Any] = {"input_ids": [5, 6, 7, 0], "input_lengths": 3, "request_output_len": 9, "seed": 7}
    inputs |= {"temperature": heat, "runtime_top_k": 40, "return_log_probs": True}
    (whole,) = ask(**inputs).sender.wait()
    front = [1] if batched else []
    assert whole["output_ids"].shape == (*front, 1, 12)
    assert whole["output_ids"].dtype == np.int32
    assert whole["output_ids"].reshape(-1).tolist() == [5, 6, 7, *expected.token_ids]
    assert whole["sequence_length"].shape == (*front, 1)
    assert whole["sequence_length"].reshape(-1).tolist() == [12]
    assert whole["output_log_probs"].shape == (*front, 1, 9)
    assert whole["output_log_probs"].dtype == np.float32
    assert expected.logprobs is not None
    each = [table[token].logprob for token, table in zip(expected.token_ids, expected.logprobs, strict=True)]
    np.testing.assert_array_equal(whole["output_log_probs"].reshape(-1), np.array(each, np.float32))
    np.testing.assert_array_equal(whole["cum_log_probs"].reshape(-1), np.float32([expected.cumulative_logprob]))

    streamed = ask(**inputs, streaming=True).sender.wait()
    tokens = [token for response in streamed for token in response["output_ids"].reshape(-1).tolist()]
    assert tokens == expected.token_ids
    assert sum(int(response["sequence_length"].reshape(-1)[0]) for response in streamed) == 9
    assert sum(response["output_log_probs"].size for response in streamed) == 9


def test_several_completions_have_a_response_each(model: TritonPythonModel, ask: Ask) -> None:
    params = SamplingParams(n=3, max_tokens=6, top_k=50, seed=11)
    expected = [completion.text for completion in model.llm.generate(PROMPT, params).outputs]
    for stream in (False, True):
        request = ask(
            text_input=PROMPT, max_tokens=6, top_k=50, seed=11, num_return_sequences=3, stream=stream,
            exclude_input_in_output=True,
        )  # fmt: skip
        texts = ["", "", ""]
        for response in request.sender.wait():
            texts[int(response["sequence_index"].reshape(-1)[0])] += response["text_output"][0].decode()
        assert texts == expected
        assert len(set(texts)) > 1


@pytest.mark.parametrize("decoupled", [True, False])
def test_beams_come_in_one_response(pico_engine: Path, decoupled: bool) -> None:
    model = load(pico_engine, decoupled=decoupled)
    params = SamplingParams(n=3, beam_width=4, max_tokens=6, length_penalty=0.0, early_stopping=True, logprobs=0)
    expected = model.llm.generate(PROMPT, params).outputs
    ids = model.llm.engine.tokenizer.encode(PROMPT)
    texts = {"text_input": [[PROMPT.encode()]], "max_tokens": [[6]]}
    tokens = {"input_ids": [ids], "input_lengths": [[len(ids)]], "request_output_len": [[6]]}
    for values in (texts, tokens):
        arrays = {
            name: np.array(value, np.object_ if name == "text_input" else np.int32) for name, value in values.items()
        }
        shared = {"beam_width": [[4]], "num_return_sequences": [[3]]}
        arrays |= {name: np.array(value, np.int32) for name, value in shared.items()}
        arrays |= {name: np.ones((1, 1), np.bool_) for name in ("return_log_probs", "exclude_input_in_output")}
        request = Request(arrays)
        model.execute([request])
        (response,) = request.sender.wait()
        sums = [completion.cumulative_logprob for completion in expected]
        assert response["cum_log_probs"] == pytest.approx(np.array([sums], np.float32))
        if "text_output" in response:
            assert [text.decode() for text in response["text_output"]] == [each.text for each in expected]
        else:
            assert response["sequence_length"].tolist() == [[len(each.token_ids) for each in expected]]
            assert response["output_ids"][0].tolist() == [each.token_ids for each in expected]
    model.finalize()


def test_one_request_may_hold_several_prompts(pico_engine: Path) -> None:
    model = load(pico_engine)
    prompts = ["import os", "def main", "class A"]
    values = {
        "text_input": np.array([[prompt.encode()] for prompt in prompts], np.object_),
        "max_tokens": np.array([[3], [5], [4]], np.int32),
        "return_num_output_tokens": np.ones((3, 1), np.bool_),
    }
    request = Request(values)
    model.execute([request])
    answers = {int(each["batch_index"][0, 0]): each for each in request.sender.wait()}
    for index, (prompt, most) in enumerate(zip(prompts, [3, 5, 4], strict=True)):
        expected = model.llm.generate(prompt, SamplingParams(max_tokens=most, temperature=0)).outputs[0].text
        assert answers[index]["text_output"][0].decode() == prompt + expected
        assert answers[index]["num_output_tokens"].tolist() == [[most]]
    model.finalize()


def test_requests_of_one_call_are_each_answered(model: TritonPythonModel, batched: bool) -> None:
    good = {"text_input": PROMPT, "max_tokens": 4}
    requests = [Request(as_inputs(values, batched)) for values in (good, {"max_tokens": 4}, good)]
    model.execute(requests)
    assert text_of(requests[0]) == text_of(requests[2])
    assert "neither came" in str(error_of(requests[1]))


def test_lora_task_id_names_an_adapter(model: TritonPythonModel, pico_engine: Path, tmp_path: Path) -> None:
    shapes = places_of(pico_engine).modules
    folders = [make_adapter(tmp_path / str(seed), shapes, seed=seed, spread=0.1) for seed in range(2)]
    listed = f"7={folders[0]}, 08={folders[1]}"
    adapted = load(pico_engine, lora_adapters=listed)
    try:
        texts = {}
        for task in (7, 8):
            values = as_inputs({"text_input": PROMPT, "max_tokens": 8}, True)
            request = Request(values | {"lora_task_id": np.array([[task]], np.uint64)})
            adapted.execute([request])
            texts[task] = text_of(request)
            params = SamplingParams(max_tokens=8, temperature=0, adapter=str(task))
            assert texts[task] == PROMPT + adapted.llm.generate(PROMPT, params).outputs[0].text
        assert texts[7] != texts[8]
    finally:
        adapted.finalize()


@pytest.mark.parametrize("text", ["x", "7", "7=", "=a", "a=b", "-1=b", "7=a,7=b", "7=a,07=b", "7=a,", "1" * 21 + "=a"])
def test_lora_adapters_have_ids_and_paths(text: str) -> None:
    options = parse_options({"parameters": {"engine": {"string_value": "e"}, "lora_adapters": {"string_value": text}}})
    with pytest.raises(InvalidOptionError, match="'lora_adapters' must have ID=PATH"):
        options.adapters("folder")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"text_input": PROMPT}, "input 'max_tokens' is required by the text interface"),
        ({"input_ids": [1, 2], "request_output_len": 3}, "input 'input_lengths' is required by the token interface"),
        ({"text_input": PROMPT, "input_ids": [1], "max_tokens": 1}, "both came"),
        ({"text_input": PROMPT, "max_tokens": 1, "streaming": True}, "did you mean stream"),
        ({"text_input": PROMPT, "max_tokens": 0}, "max_tokens must be a positive integer"),
        ({"text_input": PROMPT, "max_tokens": 10**6}, "tokens of prompt and output together"),
        ({"text_input": PROMPT, "max_tokens": 1, "beam_width": 999}, "beam_width must be at most max_batch_size"),
        ({"text_input": PROMPT, "max_tokens": 1, "lora_task_id": np.array([3], np.uint64)}, "no adapter '3'"),
        (
            {"text_input": PROMPT, "max_tokens": 1, "lora_config": np.zeros((1, 3), np.int32)},
            "LoRA adapters are not brought",
        ),
        ({"text_input": PROMPT, "max_tokens": 1, "image_url_input": "http://x"}, "images and video"),
        ({"text_input": np.array([b"\xff"], np.object_), "max_tokens": 1}, "'text_input' must be UTF-8"),
        ({"text_input": [PROMPT, PROMPT], "max_tokens": 1}, "'text_input' must hold one value per prompt, got 2"),
        ({"text_input": PROMPT, "max_tokens": 1.0}, "'max_tokens' has the wrong type"),
        ({"text_input": PROMPT, "max_tokens": 1, "pad_id": "x"}, "'pad_id' has the wrong type"),
        ({"text_input": PROMPT, "max_tokens": 1, "end_id": 10**6}, "'end_id' must be a token id below"),
        ({"text_input": PROMPT, "max_tokens": 1, "num_return_sequences": 10**6}, "'num_return_sequences': n must be"),
        ({"input_ids": [10**6], "input_lengths": 1, "request_output_len": 3}, "input 'input_ids': prompt_token_ids"),
        ({"stop": True}, "needs the id of the request to stop"),
    ],
)
def test_a_wrong_request_ends_with_its_own_error(ask: Ask, values: dict[str, Any], message: str) -> None:
    error = error_of(ask(**values))
    assert message in str(error)
    assert error.code == TritonError.INVALID_ARG


def test_a_misspelt_input_that_became_a_parameter_is_refused(model: TritonPythonModel, batched: bool) -> None:
    inputs = as_inputs({"text_input": PROMPT, "max_tokens": 2}, batched)
    wrong = Request(inputs, json_parameters='{"temprature": 0.5}')
    other = Request(inputs, json_parameters='{"user": "me"}')
    model.execute([wrong, other])
    assert "no input 'temprature'; did you mean temperature?" in str(error_of(wrong))
    assert text_of(other)


def test_stop_with_the_same_id_ends_a_request_with_what_it_has(endless: TritonPythonModel, ask_endless: Ask) -> None:
    request = ask_endless("7", text_input=PROMPT, **LONG, stream=True, return_finish_reason=True)
    other = ask_endless("8", text_input=PROMPT, max_tokens=20)
    request.sender.wait_for_responses(2)
    stop = ask_endless("7", stop=True)
    assert stop.sender.wait() == []
    assert stop.sender.errors == []
    responses = request.sender.wait()
    assert responses[-1]["finish_reason"][0] == b"abort"
    assert 2 <= len(responses) < TOKENS_OF_LONG
    assert request.sender.errors == []
    assert len(text_of(other)) > len(PROMPT)
    assert ask_endless("no such id", stop=True).sender.wait() == []


def test_a_cancelled_request_frees_its_blocks(endless: TritonPythonModel, ask_endless: Ask) -> None:
    wait_until_idle(endless)
    request = ask_endless(text_input=PROMPT, **LONG, stream=True)
    request.sender.wait_for_responses(1)
    request.sender.cancelled = True
    assert len(request.sender.wait()) < TOKENS_OF_LONG
    assert request.sender.errors[0].code == TritonError.CANCELLED
    wait_until_idle(endless)


def test_a_request_that_triton_forgot_ends_and_others_can_be_cancelled(
    endless: TritonPythonModel, ask_endless: Ask
) -> None:
    for attribute in ("forgotten", "cancelled"):
        request = ask_endless(text_input=PROMPT, **LONG, stream=True)
        request.sender.wait_for_responses(1)
        setattr(request.sender, attribute, True)
        assert len(request.sender.wait()) < TOKENS_OF_LONG
    wait_until_idle(endless)
    wait_until(lambda: not endless.exchange._streams)


def test_a_client_that_takes_nothing_ends_its_request_alone(endless: TritonPythonModel, ask_endless: Ask) -> None:
    other = ask_endless(text_input=PROMPT, max_tokens=60, min_tokens=60, stream=True)
    request = ask_endless(text_input=PROMPT, **LONG, stream=True)
    request.sender.fail_sends = True
    assert len(request.sender.wait()) < TOKENS_OF_LONG
    assert len(text_of(other)) > 20
    wait_until_idle(endless)


def test_timeouts_end_a_request_with_what_it_has(model: TritonPythonModel, batched: bool) -> None:
    values: dict[str, Any] = {"text_input": PROMPT, "max_tokens": 400, "end_id": 1, "return_finish_reason": True}
    of_triton = Request(as_inputs(values, batched), timeout_us=1)
    of_ours = Request(as_inputs({**values, "timeout": 1e-6}, batched))
    model.execute([of_triton, of_ours])
    for request in (of_triton, of_ours):
        (response,) = request.sender.wait()
        assert response["finish_reason"][0] == b"timeout"


def test_times_and_blocks_of_a_request(ask: Ask) -> None:
    (response,) = ask(
        text_input=PROMPT, max_tokens=5, return_perf_metrics=True, return_num_input_tokens=True
    ).sender.wait()
    names = ("arrival_time_ns", "first_scheduled_time_ns", "first_token_time_ns", "last_token_time_ns")
    times = [int(response[name].reshape(-1)[0]) for name in names]
    assert times == sorted(times)
    assert times[0] < times[2], "a busy machine may hand over all tokens at once, so the last may be the first's equal"
    assert all(response[name].dtype == np.int64 for name in names)
    assert response["kv_cache_alloc_total_blocks"].reshape(-1).tolist() == [1]
    assert response["num_input_tokens"].dtype == np.int32


def test_every_output_is_declared(ask: Ask, batched: bool) -> None:
    """With the type that the configuration names, and as many dimensions; texts have no batch dimension."""
    everything = {"return_log_probs": True, "return_perf_metrics": True, "return_finish_reason": True}
    everything |= {"return_num_input_tokens": True, "return_num_output_tokens": True}
    many = {"num_return_sequences": 2}
    asked = [
        ask(text_input=PROMPT, max_tokens=3, **everything, **many),
        ask(input_ids=[5, 6], input_lengths=2, request_output_len=3, **everything, **many),
    ]
    declared = {tensor.name: tensor for tensor in INTERFACES["both"].outputs}
    seen = set()
    for response in (response for request in asked for response in request.sender.wait()):
        for name, value in response.items():
            front = 1 if batched and value.dtype != np.object_ else 0
            assert value.ndim == len(declared[name].dims) + front, name
            expected = {"INT32": np.int32, "INT64": np.int64, "FP32": np.float32, "STRING": np.object_}
            assert value.dtype == expected[declared[name].dtype], name
            seen.add(name)
    assert seen == set(declared) - {"batch_index"}


def test_finalize_answers_what_still_runs(toy_engine: Path) -> None:
    model = load(toy_engine, kv_cache_memory="32MiB")
    values = {"text_input": PROMPT, **LONG, "stream": True}
    request = Request(as_inputs(values, True))
    model.execute([request])
    request.sender.wait_for_responses(1)
    model.finalize()
    assert request.sender.final.is_set()
    assert request.sender.errors[0].code == TritonError.UNAVAILABLE


def test_a_model_that_cannot_be_is_refused_when_it_loads(pico_engine: Path) -> None:
    with pytest.raises(InvalidOptionError, match="no parameter 'kv_cache_memry'; did you mean kv_cache_memory"):
        load(pico_engine, kv_cache_memry="1MiB")
    with pytest.raises(InvalidOptionError, match="parameter 'threads' must be a positive integer, got '-1'"):
        load(pico_engine, threads="-1")
    with pytest.raises(InvalidOptionError, match="interface must be one of both, text, tokens, llmapi"):
        load(pico_engine, interface="json")


@pytest.mark.parametrize("interface", INTERFACES)
def test_a_configuration_without_tensors_is_completed(interface: str) -> None:
    config = ModelConfig({"parameters": {"interface": {"string_value": interface}}})
    done = TritonPythonModel.auto_complete_config(config).as_dict()
    assert done["model_transaction_policy"] == {"decoupled": True}
    assert [tensor["name"] for tensor in done["input"]] == [each.name for each in INTERFACES[interface].inputs]
    assert [tensor["name"] for tensor in done["output"]] == [each.name for each in INTERFACES[interface].outputs]
    policy = {"model_transaction_policy": {"decoupled": False}}
    assert TritonPythonModel.auto_complete_config(ModelConfig({**done, **policy})).as_dict() == {**done, **policy}
    again = TritonPythonModel.auto_complete_config(ModelConfig(done)).as_dict()
    assert again == done


def test_without_the_decoupled_mode_a_request_has_one_answer(toy_engine: Path) -> None:
    model = load(toy_engine, decoupled=False, kv_cache_memory="32MiB")
    requests = [
        Request(as_inputs({"text_input": PROMPT, **values}, True), "1", sender=Sender(decoupled=False))
        for values in (
            {"max_tokens": 4},
            {**LONG, "return_finish_reason": True},
            {"max_tokens": 4, "stream": True},
            {"max_tokens": 4, "num_return_sequences": 2},
        )
    ]
    model.execute(requests)
    assert len(text_of(requests[0])) > len(PROMPT)
    stop = Request(as_inputs({"stop": True}, True), "1", sender=Sender(decoupled=False))
    model.execute([stop])
    assert stop.sender.wait() == [{}]
    assert requests[1].sender.wait()[0]["finish_reason"][0] == b"abort"
    assert "streaming needs the decoupled mode" in str(error_of(requests[2]))
    assert "several completions needs the decoupled mode" in str(error_of(requests[3]))
    model.finalize()


def test_without_the_decoupled_mode_several_prompts_have_one_answer(pico_engine: Path) -> None:
    """Prompt by prompt along the first dimension; shorter rows are filled up, lengths tell."""
    model = load(pico_engine, decoupled=False)
    lengths, prompts = [3, 5, 4], ["import os", "def main", "class A"]
    texts = {
        "text_input": np.array([[prompt.encode()] for prompt in prompts], np.object_),
        "max_tokens": np.array([[most] for most in lengths], np.int32),
        "return_num_output_tokens": np.ones((3, 1), np.bool_),
    }
    ids = {
        "input_ids": np.array([[5, 6, 7], [8, 9, 0], [10, 11, 12]], np.int32),
        "input_lengths": np.array([[3], [2], [3]], np.int32),
        "request_output_len": texts["max_tokens"],
        "pad_id": np.full((3, 1), 77, np.int32),
        "return_log_probs": np.ones((3, 1), np.bool_),
    }
    differing = {**texts, "return_num_output_tokens": np.array([[True], [False], [True]])}
    wrong = {**texts, "max_tokens": np.array([[3], [0], [4]], np.int32)}
    requests = [Request(values, sender=Sender(decoupled=False)) for values in (texts, ids, differing, wrong)]
    model.execute(requests)
    (text,), (tokens,) = (request.sender.wait() for request in requests[:2])
    params = [SamplingParams(max_tokens=most, temperature=0, logprobs=0) for most in lengths]
    outputs = model.llm.generate(prompts, params)
    told = [prompt + output.outputs[0].text for prompt, output in zip(prompts, outputs, strict=True)]
    assert [each.decode() for each in text["text_output"]] == told
    assert text["num_output_tokens"].tolist() == [[most] for most in lengths]
    assert text["batch_index"].tolist() == [[0], [1], [2]]

    alone = [
        {"prompt_token_ids": row[:n].tolist()} for row, (n,) in zip(ids["input_ids"], [(3,), (2,), (3,)], strict=True)
    ]
    outputs = model.llm.generate(alone, params)
    whole = [output.prompt_token_ids + output.outputs[0].token_ids for output in outputs]
    assert tokens["sequence_length"].tolist() == [[len(row)] for row in whole]
    assert tokens["output_ids"].tolist() == [[row + [77] * (7 - len(row))] for row in whole]
    assert tokens["output_log_probs"].shape == (3, 1, 5)
    assert tokens["output_log_probs"][0, 0, 3:].tolist() == [0.0, 0.0]
    sums = np.float32([[output.outputs[0].cumulative_logprob] for output in outputs])
    np.testing.assert_array_equal(tokens["cum_log_probs"], sums)
    assert "all prompts of a request must ask for the same outputs" in str(error_of(requests[2]))
    assert "max_tokens must be a positive integer" in str(error_of(requests[3]))
    model.finalize()
