"""Reads and writes the LLM-API interface: the tensors of TensorRT-LLM's `llmapi/tensorrt_llm`, which have no batch.

text_input gives text_output. In a stream, each text_output is the whole text so far. Without max_tokens, 32 tokens are
generated. Sampling needs top_k, top_p or a temperature above 0. Both rules are those of TensorRT-LLM's LLM API.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tensorwright.errors import InvalidRequestError
from tensorwright.runtime.base.request_bounds import PROMPTS, STOP_STRINGS
from tensorwright.runtime.engine.engine_dir import EngineDir
from tensorwright.runtime.requests.generation_defaults import shapes_distribution, without_length
from tensorwright.runtime.requests.sampling_params import SamplingParams
from tensorwright.runtime.serving.triton.perf import perf_outputs
from tensorwright.runtime.serving.triton.refusals import REFUSED_LLMAPI, check_refused
from tensorwright.runtime.serving.triton.replies import Asked, Job, Part, text_array
from tensorwright.runtime.serving.triton.sampling_inputs import SCHEDULING_INPUTS, by_input, scheduling_fields
from tensorwright.runtime.serving.triton.tensors import Row, Tensor, tensors

PREFIX = "sampling_param_"
DEFAULT_MAX_TOKENS = 32
INPUTS: tuple[Tensor, ...] = (
    Tensor("text_input", "STRING", (-1,), required=True),
    *tensors("INT32", f"{PREFIX}best_of {PREFIX}top_k {PREFIX}max_tokens"),
    *tensors("FP32", f"{PREFIX}temperature {PREFIX}top_p {PREFIX}frequency_penalty {PREFIX}presence_penalty"),
    *tensors("STRING", f"{PREFIX}stop", (-1,)),
    *tensors("UINT64", f"{PREFIX}seed"),
    *tensors("BOOL", f"{PREFIX}exclude_input_from_output {PREFIX}return_perf_metrics"),
    *tensors("BOOL", "streaming stop return_finish_reason return_stop_reason return_cumulative_logprob"),
    *SCHEDULING_INPUTS,
    *REFUSED_LLMAPI,
)
INPUT_OF = {tensor.name.removeprefix(PREFIX): tensor.name for tensor in INPUTS if tensor.name.startswith(PREFIX)}
OUTPUTS: tuple[Tensor, ...] = (
    *tensors("STRING", "text_output finish_reason stop_reason", (-1,)),
    *tensors("FP32", "cumulative_logprob kv_cache_hit_rate", (-1,)),
    *tensors(
        "INT32",
        "kv_cache_reused_block kv_cache_missed_block kv_cache_alloc_new_blocks kv_cache_alloc_total_blocks",
        (-1,),
    ),
    *tensors("INT64", "arrival_time_ns first_scheduled_time_ns first_token_time_ns last_token_time_ns"),
    *tensors("FP32", "acceptance_rate"),
    *tensors("INT32", "total_accepted_draft_tokens total_draft_tokens"),
)


def read(row: Row, engine: EngineDir, exclude_input: bool, defaults: Mapping[str, Any]) -> Job:
    """Reads one prompt. Raises InvalidRequestError.

    exclude_input: the value of sampling_param_exclude_input_from_output if the request does not send it.
    defaults: the model's sampling defaults. If they say how tokens are drawn, a request without such inputs is not
    greedy.
    """
    row.require("text_input", "LLM-API")
    check_refused(row)
    best = row.integer(PREFIX + "best_of")
    if best not in (None, 0, 1):
        raise InvalidRequestError(f"input '{PREFIX}best_of' must be 1, got {best}: one completion is returned")
    top_k, top_p = row.integer(PREFIX + "top_k"), row.number(PREFIX + "top_p")
    heat = row.number(PREFIX + "temperature")
    silent = not top_k and top_p is None and heat is None and not shapes_distribution(defaults)
    greedy = top_k == 1 or heat == 0 or top_p == 0 or silent
    fields: dict[str, Any] = {
        "temperature": 0.0 if greedy else heat,
        "top_k": None if greedy else top_k,
        "top_p": None if greedy else top_p,
        "max_tokens": row.integer(PREFIX + "max_tokens") if row.has(PREFIX + "max_tokens") else DEFAULT_MAX_TOKENS,
        "frequency_penalty": row.number(PREFIX + "frequency_penalty"),
        "presence_penalty": row.number(PREFIX + "presence_penalty"),
        "stop": row.texts(PREFIX + "stop", STOP_STRINGS),
        "seed": row.integer(PREFIX + "seed"),
        "logprobs": 0 if row.flag("return_cumulative_logprob") else None,
        **scheduling_fields(row),
    }
    given = {name: value for name, value in fields.items() if value is not None}
    with by_input(INPUT_OF):
        params = SamplingParams(**{**without_length(defaults), **given})
    texts = row.texts("text_input", PROMPTS)
    return Job(texts[0] if texts else "", params, _asked(row, exclude_input), INPUT_OF)


def _asked(row: Row, exclude_input: bool) -> Asked:
    return Asked(
        row.flag("streaming"),
        write,
        echo=not row.flag(PREFIX + "exclude_input_from_output", exclude_input),
        log_probs=row.flag("return_cumulative_logprob"),
        perf=row.flag(PREFIX + "return_perf_metrics"),
        finish_reason=row.flag("return_finish_reason"),
        stop_reason=row.flag("return_stop_reason"),
        whole_text=True,
    )


def write(asked: Asked, part: Part) -> dict[str, np.ndarray]:
    before = part.output.prompt or "" if asked.echo else ""
    result = {"text_output": text_array(before + part.text)}
    if asked.finish_reason:
        result["finish_reason"] = text_array(str(part.completion.finish_reason))
    if asked.stop_reason:
        result["stop_reason"] = text_array(str(part.completion.stop_reason))
    if asked.log_probs:
        result["cumulative_logprob"] = np.array([part.completion.cumulative_logprob or 0.0], np.float32)
    if asked.perf and part.completion.finish_reason is not None:
        result |= _perf(part)
    return result


def _perf(part: Part) -> dict[str, np.ndarray]:
    """Returns the performance tensors of `perf_outputs` under this interface's names."""
    result = perf_outputs(part.output, part.made, part.longest, part.block_size)
    reused = result.pop("kv_cache_reused_blocks")
    missed = result["kv_cache_alloc_new_blocks"]
    rate = (reused / np.maximum(reused + missed, 1)).astype(np.float32)
    return {
        **result,
        "kv_cache_reused_block": reused,
        "kv_cache_missed_block": missed.copy(),
        "kv_cache_hit_rate": rate,
    }
