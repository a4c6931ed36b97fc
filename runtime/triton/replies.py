"""What of a request's output goes into which response: the part of the mapping that all interfaces share.

A request gives one response per completion (when it is finished), or with streaming one per completion and change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorwright.runtime.outputs import CompletionOutput, RequestOutput
from tensorwright.runtime.prompts import Prompt
from tensorwright.runtime.sampling_params import SamplingParams
from tensorwright.runtime.triton.perf import perf_outputs
from tensorwright.runtime.triton.tensors import Row, Tensor, tensors

OUTPUTS: tuple[Tensor, ...] = (
    *tensors("FP32", "cum_log_probs", (-1,)),
    *tensors("FP32", "output_log_probs", (-1, -1)),
    *tensors(
        "INT32",
        "batch_index sequence_index kv_cache_alloc_new_blocks kv_cache_reused_blocks kv_cache_alloc_total_blocks",
    ),
    *tensors("INT64", "arrival_time_ns first_scheduled_time_ns first_token_time_ns last_token_time_ns"),
    *tensors("FP32", "acceptance_rate"),
    *tensors("INT32", "total_accepted_draft_tokens total_draft_tokens num_input_tokens num_output_tokens"),
    *tensors("STRING", "finish_reason", (-1,)),
)
"""Of the text and the token interface."""


@dataclass(frozen=True)
class Part:
    """What is new of one completion. tokens and text: since its last response, or all if it is the only one."""

    output: RequestOutput
    completion: CompletionOutput
    tokens: list[int]
    text: str
    logprobs: list[float]
    block_size: int


@dataclass
class Asked:
    """How one prompt's output is to be answered. write: a part as the interface's tensors."""

    stream: bool
    write: Callable[[Asked, Part], dict[str, np.ndarray]]
    echo: bool = False
    log_probs: bool = False
    perf: bool = False
    finish_reason: bool = False
    input_count: bool = False
    output_count: bool = False
    stop_reason: bool = False

    @classmethod
    def of(cls, row: Row, stream: bool, exclude_input: bool, write: Callable[[Asked, Part], Any]) -> Asked:
        """From the inputs that the text and the token interface share. A stream never repeats the prompt."""
        return cls(
            stream,
            write,
            echo=not stream and not row.flag("exclude_input_in_output", exclude_input),
            log_probs=row.flag("return_log_probs"),
            perf=row.flag("return_perf_metrics"),
            finish_reason=row.flag("return_finish_reason"),
            input_count=row.flag("return_num_input_tokens"),
            output_count=row.flag("return_num_output_tokens"),
        )


@dataclass(frozen=True)
class Job:
    """One prompt of a Triton request, ready for LLM.generate_async."""

    prompt: Prompt
    params: SamplingParams
    asked: Asked


class Reply:
    """Remembers what of each completion was sent. batch_index: None unless the request holds several prompts."""

    def __init__(self, job: Job, batch_index: int | None, block_size: int):
        self.streams = job.asked.stream
        self._asked = job.asked
        self._batch_index = batch_index
        self._block_size = block_size
        self._sent = [(0, 0, False)] * job.params.n  # tokens, characters, and whether it is done

    def responses(self, output: RequestOutput) -> Iterator[dict[str, np.ndarray]]:
        """Tensors, without a batch dimension, of every response that is due."""
        for index, completion in enumerate(output.outputs):
            tokens, characters, done = self._sent[index]
            finished = completion.finish_reason is not None
            new = len(completion.token_ids) > tokens
            if done or not (finished or (self._asked.stream and new)):
                continue
            self._sent[index] = (len(completion.token_ids), len(completion.text), finished)
            part = self._part(output, completion, tokens, characters)
            yield self._tensors(part)

    def _part(self, output: RequestOutput, completion: CompletionOutput, tokens: int, characters: int) -> Part:
        new = completion.token_ids[tokens:]
        tables = (completion.logprobs or [])[tokens:]
        chosen = [table[token].logprob for token, table in zip(new, tables, strict=False)]
        return Part(output, completion, new, completion.text[characters:], chosen, self._block_size)

    def _tensors(self, part: Part) -> dict[str, np.ndarray]:
        result = self._asked.write(self._asked, part)
        if self._batch_index is not None:
            result["batch_index"] = np.array([self._batch_index], np.int32)
        if len(part.output.outputs) > 1:
            result["sequence_index"] = np.array([part.completion.index], np.int32)
        return result


def shared_outputs(asked: Asked, part: Part) -> dict[str, np.ndarray]:
    """The tensors that the text and the token interface have in common."""
    result: dict[str, np.ndarray] = {}
    if asked.log_probs:
        result["cum_log_probs"] = np.array([part.completion.cumulative_logprob or 0.0], np.float32)  # [beams]
        result["output_log_probs"] = np.array([part.logprobs], np.float32)  # [beams, tokens]
    if asked.finish_reason:
        result["finish_reason"] = text_array(part.completion.finish_reason or "")
    if asked.input_count:
        result["num_input_tokens"] = np.array([len(part.output.prompt_token_ids)], np.int32)
    if asked.output_count:
        result["num_output_tokens"] = np.array([len(part.completion.token_ids)], np.int32)
    if asked.perf and part.completion.finish_reason is not None:
        result |= perf_outputs(part.output, part.completion, part.block_size)
    return result


def text_array(text: str) -> np.ndarray:
    """[1]. Texts have no batch dimension in any of TensorRT-LLM's responses; clients take as_numpy(name)[0]."""
    return np.array([text.encode("utf-8")], np.object_)
