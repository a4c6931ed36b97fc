"""What the real server answers is what the Python API answers, token for token, whatever door it came through."""

from __future__ import annotations

import json

import numpy as np
import pytest

from support.triton_client import GrpcStream, text_of, tokens_of
from support.triton_server import TritonServer
from tensorwright import LLM, SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=16)
SAMPLED = SamplingParams(temperature=0.8, top_k=20, top_p=0.9, seed=7, max_tokens=16)


def events(body: str) -> list[dict[str, object]]:
    return [json.loads(line.removeprefix("data: ")) for line in body.split("\n\n") if line]


def test_every_model_is_ready_and_says_what_it_takes(server: TritonServer) -> None:
    assert server.get("/v2/health/live")[0] == 200
    for model in ("tensorwright", "second", "endless", "ensemble", "tensorrt_llm", "llmapi"):
        assert server.is_ready(model)
        config = json.loads(server.get(f"/v2/models/{model}/config")[1])
        assert config["model_transaction_policy"] == {"decoupled": True}
        assert config["backend"] == ("tensorwright" if model == "second" else "python")
    names = {each["name"] for each in json.loads(server.get("/v2/models/tensorrt_llm")[1])["inputs"]}
    assert {"input_ids", "input_lengths", "request_output_len", "runtime_top_k", "streaming", "stop"} <= names


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("model", ["tensorwright", "tensorrt_llm"])
def test_streamed_tokens_are_those_of_the_python_api(
    server: TritonServer, llm: LLM, prompts: list[str], params: SamplingParams, model: str
) -> None:
    expected = llm.generate(prompts, params)
    with GrpcStream(server.grpc) as stream:
        for index, output in enumerate(expected):
            ids = output.prompt_token_ids
            asked = {"input_ids": ids, "input_lengths": len(ids), "request_output_len": 16, "streaming": True}
            if params is SAMPLED:
                asked |= {"runtime_top_k": 20, "runtime_top_p": 0.9, "temperature": 0.8, "seed": np.array([[7]], "u8")}
            stream.ask(model, str(index), asked)
        answers = stream.answers(map(str, range(len(prompts))))
    for index, output in enumerate(expected):
        assert tokens_of(answers[str(index)]) == output.outputs[0].token_ids, prompts[index]


@pytest.mark.parametrize("model", ["tensorwright", "ensemble"])
def test_texts_are_those_of_the_python_api_through_all_doors(
    server: TritonServer, llm: LLM, prompts: list[str], model: str
) -> None:
    expected = [output.outputs[0].text for output in llm.generate(prompts, GREEDY)]
    with GrpcStream(server.grpc) as stream:
        for index, prompt in enumerate(prompts):
            stream.ask(model, str(index), {"text_input": prompt, "max_tokens": 16, "stream": True})
            stream.ask(model, f"whole {index}", {"text_input": prompt, "max_tokens": 16})
        answers = stream.answers([str(i) for i in range(len(prompts))] + [f"whole {i}" for i in range(len(prompts))])
    for index, (prompt, text) in enumerate(zip(prompts, expected, strict=True)):
        assert text_of(answers[str(index)]) == text
        assert len(answers[f"whole {index}"]) == 1
        assert text_of(answers[f"whole {index}"]) == prompt + text
        asked = {"text_input": prompt, "max_tokens": 16}
        status, body = server.get(f"/v2/models/{model}/generate", {**asked, "exclude_input_in_output": True})
        assert (status, json.loads(body)["text_output"]) == (200, text)
        status, body = server.get(f"/v2/models/{model}/generate_stream", {**asked, "stream": True})
        assert (status, "".join(str(each["text_output"]) for each in events(body))) == (200, text)


def test_the_llm_api_model_answers_with_the_whole_text_so_far(server: TritonServer, llm: LLM) -> None:
    text = llm.generate("import os", GREEDY).outputs[0].text
    asked = {
        "text_input": "import os", "sampling_param_max_tokens": 16, "streaming": True,
        "sampling_param_exclude_input_from_output": True, "return_finish_reason": True,
    }  # fmt: skip
    with GrpcStream(server.grpc) as stream:
        stream.ask("llmapi", "1", asked, batched=False)
        answers = stream.answers(["1"])["1"]
    texts = [answer["text_output"][0].decode() for answer in answers]
    assert texts[-1] == text
    assert all(text.startswith(each) for each in texts)
    assert answers[-1]["finish_reason"][0] == b"length"


def test_two_engines_answer_side_by_side(server: TritonServer, llm: LLM, toy_llm: LLM, prompts: list[str]) -> None:
    first = llm.generate(prompts[:4], GREEDY)
    second = toy_llm.generate(prompts[:4], GREEDY)
    with GrpcStream(server.grpc) as stream:
        for model in ("tensorwright", "second"):
            for index, prompt in enumerate(prompts[:4]):
                stream.ask(model, f"{model} {index}", {"text_input": prompt, "max_tokens": 16, "stream": True})
        answers = stream.answers(f"{model} {i}" for model in ("tensorwright", "second") for i in range(4))
    for index in range(4):
        assert text_of(answers[f"tensorwright {index}"]) == first[index].outputs[0].text
        assert text_of(answers[f"second {index}"]) == second[index].outputs[0].text


def test_several_completions_come_with_their_sequence_index(server: TritonServer, llm: LLM) -> None:
    params = SamplingParams(temperature=1.0, top_k=50, seed=3, n=3, max_tokens=12)
    expected = [completion.text for completion in llm.generate("def ", params).outputs]
    asked = {
        "text_input": "def ", "max_tokens": 12, "num_return_sequences": 3, "top_k": 50, "temperature": 1.0,
        "seed": np.array([[3]], "u8"), "stream": True,
    }  # fmt: skip
    with GrpcStream(server.grpc) as stream:
        stream.ask("tensorwright", "n", asked)
        answers = stream.answers(["n"])["n"]
    for index in range(3):
        mine = [answer for answer in answers if int(answer["sequence_index"].item()) == index]
        assert text_of(mine) == expected[index]


def test_prompts_of_one_request_come_with_their_batch_index(server: TritonServer, llm: LLM) -> None:
    texts = ["import os", "class "]
    expected = llm.generate(texts, GREEDY)
    asked = {
        "text_input": np.array([[text.encode()] for text in texts], object),
        "max_tokens": np.array([[16], [16]], np.int32),
        "stream": np.array([[True], [True]]),
    }
    with GrpcStream(server.grpc) as stream:
        stream.ask("ensemble", "two", asked)
        answers = stream.answers(["two"])["two"]
    for index in range(2):
        mine = [answer for answer in answers if int(answer["batch_index"].item()) == index]
        assert text_of(mine) == expected[index].outputs[0].text


def test_stop_words_and_log_probs(server: TritonServer, llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=16, stop=["("], include_stop_str_in_output=True, logprobs=0)
    expected = llm.generate("import os", params).outputs[0]
    assert expected.finish_reason == "stop"
    asked = {
        "text_input": "import os", "max_tokens": 16, "stop_words": ["("], "return_log_probs": True,
        "exclude_input_in_output": True,
    }  # fmt: skip
    with GrpcStream(server.grpc) as stream:
        stream.ask("ensemble", "1", asked)
        answer = stream.answers(["1"])["1"][0]
    assert text_of([answer]) == expected.text
    assert answer["cum_log_probs"].item() == pytest.approx(expected.cumulative_logprob, rel=1e-6)
