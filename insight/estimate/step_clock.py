"""Predicts the times of a model's steps on a device, or on several that share every matrix."""

from __future__ import annotations

from dataclasses import replace

from tensorwright.engine_format.dtypes import ITEM_BYTES
from tensorwright.insight.devices.device import Device
from tensorwright.insight.estimate.costs import Costs
from tensorwright.insight.estimate.parallel import sum_seconds
from tensorwright.insight.estimate.roofline import StepTime, step_seconds, time_of
from tensorwright.insight.estimate.subject import Subject
from tensorwright.options.engine import DEFAULT_LIMITS

CHUNK = DEFAULT_LIMITS["max_num_tokens"]
"""The tokens of a step in which a prompt is computed."""


class StepClock:
    """Predicts the times of a model on a device."""

    def __init__(self, subject: Subject, costs: Costs, device: Device, count: int):
        self.subject, self.costs, self.device, self.count = subject, costs, device, count
        largest = max(costs.step([(1, 1)], 1), key=lambda work: work.weight_bytes)
        self.arithmetic = largest.arithmetic
        self.notes = [step_seconds(device.platform.name).source]

    def step(self, sequences: list[tuple[int, int]], rows: int) -> StepTime:
        time = time_of(self.costs.step(sequences, rows), self.device)
        tokens = sum(count for count, _ in sequences)
        on_cpu = "cpu" in self.device.platform.targets
        element = ITEM_BYTES["float32" if on_cpu else self.subject.dtype]  # ranks of target cpu add in float32
        sums = sum_seconds(self.device, self.count, self.subject.layers, self.subject.width, tokens, element)
        return replace(time, seconds=time.seconds + sums + step_seconds(self.device.platform.name).seconds)

    def decode(self, sequences: int, context: int) -> StepTime:
        return self.step([(1, context)] * sequences, sequences)

    def prefill(self, prompt: int) -> StepTime:
        """Returns the sum over the chunks of a prompt."""
        ends = [*range(CHUNK, prompt, CHUNK), prompt]
        starts = [0, *ends[:-1]]
        parts = [self.step([(end - start, end)], int(end == prompt)) for start, end in zip(starts, ends, strict=True)]
        sums = zip(
            *((p.seconds, p.byte_seconds, p.operation_seconds, p.bytes, p.operations) for p in parts), strict=True
        )
        return StepTime(*map(sum, sums))

    def turns_at(self, context: int) -> int | None:
        """Returns the smallest batch whose decoding waits for arithmetic; None if there is none."""
        high = 1
        while self.decode(high, context).bound == "bytes":
            high *= 2
            if high > 4096:
                return None
        low = high // 2  # it waits for memory, or is 0
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.decode(middle, context).bound == "bytes" else (low, middle)
        return high
