"""Reads and writes the token interface: the tensors of TensorRT-LLM's `tensorrt_llm`.

input_ids, input_lengths and request_output_len give output_ids [beams, tokens] and sequence_length [beams]; there is
one beam unless beam_width says otherwise. In a stream, output_ids has the new ids. Otherwise it has all ids, after
those of the prompt unless exclude_input_in_output is set. Every completion has its own response without padding. Only
where beams or, without the decoupled mode, several prompts share a response, shorter output_ids are filled up with
pad_id, else with end_id, else with 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tensorwright.errors import InvalidRequestError
from tensorwright.runtime.base import request_bounds as bounds
from tensorwright.runtime.base.parameter_checks import shown
from tensorwright.runtime.engine.engine_dir import EngineDir
from tensorwright.runtime.requests.sampling_params import SamplingParams
from tensorwright.runtime.serving.triton import replies, sampling_inputs
from tensorwright.runtime.serving.triton.refusals import REFUSED_TOKENS
from tensorwright.runtime.serving.triton.replies import Asked, Job, Part, shared_outputs
from tensorwright.runtime.serving.triton.sampling_inputs import InputNames, by_input, optional_token, sampling_fields
from tensorwright.runtime.serving.triton.tensors import Row, Tensor, check_size, tensors, word_list

INPUTS: tuple[Tensor, ...] = (
    Tensor("input_ids", "INT32", (-1,)),  # The server takes it as optional, as TensorRT-LLM does.
    Tensor("input_lengths", "INT32", required=True),
    Tensor("request_output_len", "INT32", required=True),
    *tensors("INT32", "stop_words_list bad_words_list", (2, -1)),
    *tensors("FP32", "embedding_bias", (-1,)),
    *tensors("INT32", "runtime_top_k"),
    *tensors("FP32", "runtime_top_p len_penalty"),
    *tensors("BOOL", "streaming"),
    *sampling_inputs.INPUTS,
    *REFUSED_TOKENS,
)
NAMES = InputNames("runtime_top_k", "runtime_top_p", "len_penalty", "streaming")
INPUT_OF = {
    "n": "num_return_sequences", "length_penalty": "len_penalty", "max_tokens": "request_output_len",
    "top_k": "runtime_top_k", "top_p": "runtime_top_p",
    "prompt_token_ids": "input_ids", "stop": "stop_words_list", "stop_token_ids": "stop_words_list",
    "bad_words": "bad_words_list", "logit_bias": "embedding_bias",
}  # fmt: skip
OUTPUTS: tuple[Tensor, ...] = (
    Tensor("output_ids", "INT32", (-1, -1)),
    Tensor("sequence_length", "INT32", (-1,)),
    *replies.OUTPUTS,
)


def read(row: Row, engine: EngineDir, exclude_input: bool, defaults: Mapping[str, Any]) -> Job:
    """Reads one prompt. Raises InvalidRequestError.

    exclude_input: the value of exclude_input_in_output if the request does not send it.
    defaults: the model's sampling defaults.
    """
    for name in ("input_ids", "input_lengths", "request_output_len"):
        row.require(name, "token")
    ids, length = row.integers("input_ids", bounds.TOKENS), row.required_integer("input_lengths")
    if not 0 < length <= len(ids):
        raise InvalidRequestError(f"input 'input_lengths' must be from 1 to {len(ids)}, as input_ids has, got {length}")
    fields: dict[str, Any] = sampling_fields(row, NAMES, defaults, engine.vocab_size)
    fields["max_tokens"] = row.integer("request_output_len")
    fields["bad_words"] = word_list(row, "bad_words_list", bounds.BAD_WORDS)
    fields["logit_bias"] = _biases(row, engine)
    stops = word_list(row, "stop_words_list", bounds.STOP_TOKEN_IDS)
    fields |= _stops(stops, fields.get("stop_token_ids", []), engine)
    asked = Asked.from_row(row, row.flag("streaming"), exclude_input, write)
    asked.pad = _pad(row)
    with by_input(INPUT_OF):
        return Job({"prompt_token_ids": ids[:length]}, SamplingParams(**fields), asked, INPUT_OF)


def _pad(row: Row) -> int:
    sent = [optional_token(row, name) for name in ("pad_id", "end_id")]
    return next((token for token in sent if token is not None), 0)


def write(asked: Asked, part: Part) -> dict[str, np.ndarray]:
    tokens = part.completion.token_ids
    if asked.echo:
        tokens = part.output.prompt_token_ids + tokens
    return {
        "output_ids": np.array([tokens], np.int32).reshape(1, -1),  # [beams, tokens]
        "sequence_length": np.array([len(tokens)], np.int32),  # [beams]
        **shared_outputs(asked, part),
    }


def _stops(words: list[list[int]], tokens: list[int], engine: EngineDir) -> dict[str, Any]:
    """Returns the keywords of SamplingParams for stop words. A word of one token stops at that token. A longer word
    stops where its text is complete, whatever its tokens are, so text is decoded only if there are longer words."""
    single = [word[0] for word in words if len(word) == 1]
    longer = [word for word in words if len(word) > 1]
    check_size("stop_words_list", len(longer), bounds.STOP_STRINGS, "words of several tokens")
    check_size("stop_words_list", max(map(len, longer), default=0), bounds.STOP_LENGTH, "tokens of a word")
    result: dict[str, Any] = {"stop_token_ids": [*tokens, *single], "detokenize": bool(longer)}
    if not longer:
        return result
    if engine.tokenizer is None:
        raise InvalidRequestError(
            "input 'stop_words_list': words of several tokens need a tokenizer, and the engine has none"
        )
    for word in longer:
        if not all(0 <= token < engine.vocab_size for token in word):
            raise InvalidRequestError(
                f"input 'stop_words_list' must hold ids below {engine.vocab_size}, got {shown(word)}"
            )
    texts = [engine.tokenizer.decode(word, skip_special_tokens=False) for word in longer]
    if any(not text or "\ufffd" in text for text in texts):
        raise InvalidRequestError(f"input 'stop_words_list' must hold words that are whole text, got {shown(longer)}")
    return result | {"stop": texts, "skip_special_tokens": False}


def _biases(row: Row, engine: EngineDir) -> dict[int, float] | None:
    biases = row.numbers("embedding_bias", bounds.LOGIT_BIASES)
    if not biases:
        return None
    if len(biases) != engine.vocab_size:
        raise InvalidRequestError(
            f"input 'embedding_bias' must hold one number per token, {engine.vocab_size}, got {len(biases)}"
        )
    return {token: bias for token, bias in enumerate(biases) if bias != 0}
