"""Requests that are wrong get an answer that says so; whoever is served meanwhile does not notice."""

from __future__ import annotations

import http.client
import json
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from support.triton_client import GrpcStream, text_of
from support.triton_server import TritonServer
from support.waiting import PATIENCE
from tensorwright import LLM, SamplingParams

TEXT = {"text_input": "import os", "max_tokens": 4}
TOKENS = {"input_ids": [5, 6], "input_lengths": 2, "request_output_len": 4}


def without(values: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != name}


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    # By the model: what Triton lets through.
    "no prompt": ("tensorwright", {"max_tokens": 4}, "either 'text_input' or 'input_ids' is required"),
    "both prompts": ("tensorwright", {**TEXT, **TOKENS}, "either 'text_input' or 'input_ids' is required, both came"),
    "no max_tokens": ("tensorwright", {"text_input": "import os"}, "input 'max_tokens' is required"),
    "no text": ("ensemble", {"max_tokens": 4, "stream": True}, "input 'text_input' is required"),
    "no ids": ("tensorrt_llm", {**without(TOKENS, "input_ids"), "streaming": True}, "input 'input_ids' is required"),
    "no length": ("tensorrt_llm", {**without(TOKENS, "input_lengths"), "streaming": True}, "input 'input_lengths' is"),
    "no output length": (
        "tensorrt_llm", {**without(TOKENS, "request_output_len"), "streaming": True}, "'request_output_len' is required"
    ),
    "length beyond the ids": ("tensorwright", {**TOKENS, "input_lengths": 3}, "must be from 1 to 2"),
    "unknown ids": ("tensorwright", {**TOKENS, "input_ids": [5, 10**6]}, "prompt_token_ids must be integers from 0"),
    "negative id": ("tensorwright", {**TOKENS, "input_ids": [5, -1]}, "prompt_token_ids must be integers from 0"),
    "prompt too long": ("tensorwright", {**TEXT, "text_input": "import os\n" * 2000}, "prompt"),
    "no tokens to make": ("tensorwright", {**TEXT, "max_tokens": 0}, "max_tokens"),
    "temperature": ("tensorwright", {**TEXT, "top_k": 5, "temperature": -1.0}, "temperature"),
    "not a number": ("tensorwright", {**TEXT, "top_k": 5, "temperature": float("nan")}, "temperature"),
    "top_p": ("tensorwright", {**TEXT, "top_p": 1.5}, "top_p"),
    "broken UTF-8": ("tensorwright", {**TEXT, "text_input": np.array([[b"\xff\xfe"]], object)}, "must be UTF-8"),
    "beam search": ("tensorwright", {**TEXT, "beam_width": 4, "num_return_sequences": 5}, "at most beam_width"),
    "context logits": ("ensemble", {**TEXT, "return_context_logits": True}, "return_context_logits"),
    "shapes of several rows": (
        "ensemble", {"text_input": np.array([[b"a"], [b"b"]], object), "max_tokens": np.array([[4]], np.int32)}, "batch"
    ),
    "a schema that is none": (
        "tensorwright",
        {**TEXT, "guided_decoding_guide_type": "json_schema", "guided_decoding_guide": "{"},
        "json must be a JSON schema",
    ),
    # By Triton itself.
    "unknown input": ("tensorwright", {**TEXT, "no_such_input": 1}, "unexpected inference input 'no_such_input'"),
    "wrong type": ("tensorwright", {**TEXT, "max_tokens": 4.0}, "data-type is 'FP32', but model .* expects 'INT32'"),
    "wrong shape": ("tensorwright", {**TEXT, "max_tokens": [4, 5]}, "unexpected shape for input 'max_tokens'"),
    "no such model": ("no_such_model", TEXT, "unknown model: 'no_such_model'"),
}  # fmt: skip


def test_each_wrong_request_has_its_own_answer_and_harms_nobody(server: TritonServer, llm: LLM) -> None:
    expected = llm.generate("class ", SamplingParams(temperature=0, max_tokens=400, min_tokens=400)).outputs[0].text
    with GrpcStream(server.grpc) as steady:
        asked = {"text_input": "class ", "max_tokens": 400, "min_tokens": 400, "stream": True}
        steady.ask("tensorwright", "steady", asked)
        steady.next()
        for case, (model, values, message) in REFUSED.items():
            with GrpcStream(server.grpc) as stream:
                stream.ask(model, case, values)
                with pytest.raises(InferenceServerException, match=message):
                    stream.answers([case])
        assert text_of(steady.answers(["steady"])["steady"]) == expected


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ('{"max_tokens": 4}', 400, "either 'text_input' or 'input_ids'"),
        ('{"text_input": "a", "max_tokens": -1}', 400, "max_tokens"),
        ('{"text_input": "a", "max_tokens": "four"}', 500, "attempt to access JSON non-signed-integer"),
        ('{"text_input": ', 500, "failed to parse"),
        ('{"text_input": {"a": 1}, "max_tokens": 4}', 500, "attempt to access JSON non-string"),
        ("", 500, "failed to parse"),
    ],
)
@pytest.mark.parametrize("door", ["generate", "generate_stream"])
def test_http_says_what_is_wrong(server: TritonServer, door: str, body: str, status: int, message: str) -> None:
    """Of JSON that does not fit a tensor Triton says so itself, without the tensor's name."""
    connection = http.client.HTTPConnection(server.http, timeout=PATIENCE)
    connection.request("POST", f"/v2/models/tensorwright/{door}", body)
    answer = connection.getresponse()
    text = answer.read().decode()
    assert (answer.status, message in text) == (status, True), text
    assert "error" in json.loads(text.removeprefix("data: "))
    connection.close()
