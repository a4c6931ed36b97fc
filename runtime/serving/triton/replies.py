"""Turns a request's output into responses: the part of this mapping that all interfaces share.

A request gives one response per finished completion, or, with streaming, one for each change of a completion. A beam
search gives one response with all its completions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorwright.runtime.requests.outputs import CompletionOutput, RequestOutput
from tensorwright.runtime.requests.prompts import Prompt
from tensorwright.runtime.requests.sampling_params import SamplingParams
from tensorwright.runtime.serving.triton.perf import perf_outputs
from tensorwright.runtime.serving.triton.tensors import Row, Tensor, tensors

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
"""The outputs that the text and the token interface share."""
# Texts have no batch dimension, as in TensorRT-LLM's responses: there is one text for each prompt.
_UNBATCHED = {"text_output", "finish_reason", "stop_reason"}
_BY_BEAM = {"text_output", "finish_reason", "output_ids", "sequence_length", "cum_log_probs", "output_log_probs"}
"""The outputs whose first dimension is that of beams."""


@dataclass(frozen=True)
class Part:
    """The new part of one completion: its output since its last response, or all output if there is one response.

    text: the new text, or all text so far if Asked.whole_text is set. logprobs: the logprobs of the new tokens.
    made: the number of tokens of this completion so far. longest: that of the request's longest completion.
    """

    output: RequestOutput
    completion: CompletionOutput
    text: str
    logprobs: list[float]
    made: int
    longest: int
    block_size: int


@dataclass
class Asked:
    """How one prompt's output is to be answered.

    write: writes a part as the interface's tensors. pad: the token id that fills up the prompt's tokens where one
    response also holds longer prompts. whole_text: whether each response of a stream has all the text so far.
    """

    stream: bool
    write: Callable[[Asked, Part], dict[str, np.ndarray]]
    echo: bool = False
    log_probs: bool = False
    perf: bool = False
    finish_reason: bool = False
    input_count: bool = False
    output_count: bool = False
    stop_reason: bool = False
    pad: int = 0
    whole_text: bool = False

    def outputs(self) -> tuple[bool, ...]:
        """Returns the flags that decide which tensors a response has."""
        flags = (self.log_probs, self.perf, self.finish_reason, self.stop_reason)
        return (*flags, self.input_count, self.output_count)

    @classmethod
    def from_row(cls, row: Row, stream: bool, exclude_input: bool, write: Callable[[Asked, Part], Any]) -> Asked:
        """Reads the inputs that the text and the token interface share. A stream never repeats the prompt."""
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
    """One prompt of a Triton request, ready for LLM.generate_async. inputs: the input names by field, for by_input."""

    prompt: Prompt
    params: SamplingParams
    asked: Asked
    inputs: Mapping[str, str]


class Reply:
    """Writes the responses for one prompt, whose output RequestNews reads.

    batch_index: the prompt's number; None unless the Triton request holds several prompts.
    batched: whether tensors have a first dimension of 1 for the batch.
    """

    def __init__(self, job: Job, batch_index: int | None, block_size: int, batched: bool):
        self.streams = job.asked.stream
        self.pad = job.asked.pad
        self._batched = batched
        self._asked = job.asked
        self._batch_index = batch_index
        self._block_size = block_size
        self._made = [0] * job.params.n  # the tokens of each completion so far
        self._texts = [""] * job.params.n  # all text so far, if each response has it
        self._done: set[int] = set()
        self._beams = job.params.beam_width > 1

    def responses(self, output: RequestOutput) -> Iterator[dict[str, np.ndarray]]:
        """Yields the tensors of every response that is due. output: the new part of the output. If the reply does not
        stream, this is called once, with all output."""
        for completion in output.outputs:
            self._made[completion.index] += len(completion.token_ids)
        if self._beams:
            if output.finished:
                yield self._in_front(self._of_beams(output))
            return
        for completion in output.outputs:
            finished = completion.finish_reason is not None
            if completion.index in self._done or not (finished or (self.streams and completion.token_ids)):
                continue
            if finished:
                self._done.add(completion.index)
            yield self._tensors(self._part(output, completion))

    def _part(self, output: RequestOutput, completion: CompletionOutput) -> Part:
        index, text = completion.index, completion.text
        if self._asked.whole_text:
            text = self._texts[index] = self._texts[index] + text
        tables = completion.logprobs or []
        chosen = [table[token].logprob for token, table in zip(completion.token_ids, tables, strict=False)]
        return Part(output, completion, text, chosen, self._made[index], max(self._made), self._block_size)

    def _tensors(self, part: Part) -> dict[str, np.ndarray]:
        result = self._asked.write(self._asked, part)
        if self._batch_index is not None:
            result["batch_index"] = np.array([self._batch_index], np.int32)
        if len(part.output.outputs) > 1:
            result["sequence_index"] = np.array([part.completion.index], np.int32)
        return self._in_front(result)

    def _of_beams(self, output: RequestOutput) -> dict[str, np.ndarray]:
        answers = [self._asked.write(self._asked, self._part(output, completion)) for completion in output.outputs]
        joined = join(answers, [self.pad] * len(answers))
        result = {name: joined[name] if name in _BY_BEAM else value for name, value in answers[0].items()}
        if self._batch_index is not None:
            result["batch_index"] = np.array([self._batch_index], np.int32)
        return result

    def _in_front(self, result: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the tensors with the batch's dimension, where there is one."""
        front = {name for name in result if name not in _UNBATCHED} if self._batched else ()
        return {name: value[np.newaxis] if name in front else value for name, value in result.items()}


def shared_outputs(asked: Asked, part: Part) -> dict[str, np.ndarray]:
    """Returns the tensors that the text and the token interface share."""
    result: dict[str, np.ndarray] = {}
    if asked.log_probs:
        result["cum_log_probs"] = np.array([part.completion.cumulative_logprob or 0.0], np.float32)  # [beams]
        result["output_log_probs"] = np.array([part.logprobs], np.float32)  # [beams, tokens]
    if asked.finish_reason:
        result["finish_reason"] = text_array(part.completion.finish_reason or "")
    if asked.input_count:
        result["num_input_tokens"] = np.array([len(part.output.prompt_token_ids)], np.int32)
    if asked.output_count:
        result["num_output_tokens"] = np.array([part.made], np.int32)
    if asked.perf and part.completion.finish_reason is not None:
        result |= perf_outputs(part.output, part.made, part.longest, part.block_size)
    return result


def join(answers: Sequence[Mapping[str, np.ndarray]], pads: Sequence[int]) -> dict[str, np.ndarray]:
    """Joins the responses of several prompts into one, along the first dimension. Shorter tensors are filled up at
    their end: output_ids with the prompt's own pad, other tensors with 0."""
    result = {}
    for name in answers[0]:
        values = [answer[name] for answer in answers]
        most = max(value.shape[-1] for value in values)
        fills = pads if name == "output_ids" else [0] * len(values)
        result[name] = np.concatenate([_widened(value, most, fill) for value, fill in zip(values, fills, strict=True)])
    return result


def _widened(value: np.ndarray, size: int, fill: int) -> np.ndarray:
    """Returns `value` with its last dimension filled up to `size`."""
    widths = [(0, 0)] * (value.ndim - 1) + [(0, size - value.shape[-1])]
    return np.pad(value, widths, constant_values=fill) if size > value.shape[-1] else value


def text_array(text: str) -> np.ndarray:
    """Returns a text as a tensor [1] of UTF-8 bytes. Texts have no batch dimension in TensorRT-LLM's responses; clients
    take as_numpy(name)[0]."""
    return np.array([text.encode("utf-8")], np.object_)
