"""Reads and writes the text interface: the tensors of TensorRT-LLM's `ensemble` and `tensorrt_llm_bls`.

text_input and max_tokens give text_output. In a stream, text_output is the new text. Otherwise it is all text, after
the prompt's text unless exclude_input_in_output is set. A stop word stays at the end of the text. A beam search gives a
text for each beam.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tensorwright.errors import InvalidRequestError
from tensorwright.runtime.base import request_bounds as bounds
from tensorwright.runtime.engine.engine_dir import EngineDir
from tensorwright.runtime.requests.sampling_params import SamplingParams
from tensorwright.runtime.serving.triton import replies, sampling_inputs
from tensorwright.runtime.serving.triton.refusals import REFUSED_TEXT
from tensorwright.runtime.serving.triton.replies import Asked, Job, Part, shared_outputs, text_array
from tensorwright.runtime.serving.triton.sampling_inputs import InputNames, by_input, sampling_fields
from tensorwright.runtime.serving.triton.tensors import Row, Tensor, check_size, tensors

INPUTS: tuple[Tensor, ...] = (
    Tensor("text_input", "STRING", required=True),
    Tensor("max_tokens", "INT32", required=True),
    *tensors("STRING", "bad_words stop_words embedding_bias_words", (-1,)),
    *tensors("FP32", "embedding_bias_weights", (-1,)),
    *tensors("INT32", "top_k"),
    *tensors("FP32", "top_p length_penalty"),
    *tensors("BOOL", "stream"),
    *sampling_inputs.INPUTS,
    *REFUSED_TEXT,
)
NAMES = InputNames("top_k", "top_p", "length_penalty", "stream")
INPUT_OF = {"n": "num_return_sequences", "stop": "stop_words", "logit_bias": "embedding_bias_words"}
OUTPUTS: tuple[Tensor, ...] = (Tensor("text_output", "STRING", (-1,)), *replies.OUTPUTS)


def read(row: Row, engine: EngineDir, exclude_input: bool, defaults: Mapping[str, Any]) -> Job:
    """Reads one prompt. Raises InvalidRequestError.

    exclude_input: the value of exclude_input_in_output if the request does not send it.
    defaults: the model's sampling defaults.
    """
    row.require("text_input", "text")
    row.require("max_tokens", "text")
    fields: dict[str, Any] = sampling_fields(row, NAMES, defaults, engine.vocab_size)
    fields["max_tokens"] = row.integer("max_tokens")
    fields["bad_words"] = row.texts("bad_words", bounds.BAD_WORDS)
    fields["stop"] = row.texts("stop_words", bounds.STOP_STRINGS)
    fields["include_stop_str_in_output"] = True
    fields["logit_bias"] = _biases(row, engine)
    asked = Asked.from_row(row, row.flag("stream"), exclude_input, write)
    with by_input(INPUT_OF):
        return Job(row.text("text_input") or "", SamplingParams(**fields), asked, INPUT_OF)


def write(asked: Asked, part: Part) -> dict[str, np.ndarray]:
    before = part.output.prompt or "" if asked.echo else ""
    return {"text_output": text_array(before + part.text), **shared_outputs(asked, part)}


def _biases(row: Row, engine: EngineDir) -> dict[int, float] | None:
    """Returns the bias of each token. The weight of a word goes to every token of the word."""
    most = bounds.BAD_WORDS  # The words are tokenized in the thread in which all requests start.
    words = row.texts("embedding_bias_words", most)
    weights = row.numbers("embedding_bias_weights", most)
    if len(words) != len(weights):
        raise InvalidRequestError(
            f"inputs 'embedding_bias_words' and 'embedding_bias_weights' must be as many, got {len(words)} and "
            f"{len(weights)}"
        )
    if not words:
        return None
    if engine.tokenizer is None:
        raise InvalidRequestError("input 'embedding_bias_words' needs a tokenizer, and the engine has none")
    biases: dict[int, float] = {}
    for word, weight in zip(words, weights, strict=True):
        check_size("embedding_bias_words", len(word), bounds.BAD_WORD_LENGTH, "characters of a word")
        spelled = engine.tokenizer.encode(word, add_special_tokens=False)
        check_size("embedding_bias_words", len(spelled), bounds.BAD_WORD_TOKENS, "tokens of a word")
        for token in dict.fromkeys(spelled):
            biases[token] = biases.get(token, 0.0) + weight
    return biases
