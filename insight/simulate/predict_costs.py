"""Predicts what the steps of a model cost on a device that is not at hand, by the roofline of insight/estimate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tensorwright.errors import InvalidOptionError
from tensorwright.insight.devices.device import Device
from tensorwright.insight.estimate.costs import Costs, sequence_bytes
from tensorwright.insight.estimate.roofline import process_bytes
from tensorwright.insight.estimate.step_clock import StepClock
from tensorwright.insight.simulate.replica_shape import ReplicaShape
from tensorwright.insight.simulate.step_costs import StepCosts, StepSample, fit_costs
from tensorwright.options.engine import DEFAULT_LIMITS
from tensorwright.sizes import format_size

CONTEXTS = (1, 64, 256, 1024, 4096, 16384)
"""The positions of the sequences whose steps are predicted, as far as the model has them."""


@dataclass(frozen=True)
class EngineLimits:
    """The options of the engines, of which None means the default."""

    kv_cache_bytes: int | None = None
    max_batch_size: int | None = None
    max_num_tokens: int | None = None
    max_prefill_chunk: int | None = None
    max_queue_size: int = 1024
    enable_prefix_caching: bool | None = None


def predicted_shape(costs: Costs, device: Device, limits: EngineLimits, threads: int) -> ReplicaShape:
    """Returns the engine that fits on the device: its KV cache is what weights, activations and the process leave.

    Raises InvalidOptionError if they leave nothing.
    """
    tokens = limits.max_num_tokens or DEFAULT_LIMITS["max_num_tokens"]
    batch = limits.max_batch_size or min(DEFAULT_LIMITS["max_batch_size"], tokens)
    if tokens < batch:
        raise InvalidOptionError(f"--max-num-tokens must be at least --max-batch-size {batch}, got {tokens}")
    step = costs.memory(tokens, batch, batch, threads)
    taken = costs.weights_bytes + step.activations + step.scratch + process_bytes(device.platform.name)
    left = device.memory - taken - batch * costs.state_bytes
    least = sum(group.block_bytes for group in costs.groups)
    asked = limits.kv_cache_bytes
    if left < least or (asked is not None and asked > left):
        raise InvalidOptionError(
            f"{device.name} has {format_size(device.memory)}, of which weights, activations and the process take "
            f"{format_size(taken)}: {format_size(max(0, left))} are left for the KV cache, and "
            f"{format_size(least if asked is None else asked)} are needed"
        )
    # More than a full batch of the longest sequences can hold is of no use but for prefixes.
    useful = 2 * batch * sequence_bytes(costs, costs.max_seq_len)
    return ReplicaShape(
        max_seq_len=costs.max_seq_len,
        block_size=costs.block_size,
        block_bytes=tuple(group.block_bytes for group in costs.groups),
        group_windows=tuple(group.window for group in costs.groups),
        kv_cache_bytes=min(left, max(useful, least)) if asked is None else asked,
        max_batch_size=batch,
        max_num_tokens=tokens,
        max_chunk=limits.max_prefill_chunk or tokens,
        max_queue=limits.max_queue_size,
        prefix_cache=limits.enable_prefix_caching is not False,
        state_bytes=costs.state_bytes,
    )


def predicted_costs(clock: StepClock, shape: ReplicaShape) -> StepCosts:
    """Returns the costs of steps as the roofline says them, fitted on decodes and prompts of many sizes."""
    samples = []
    contexts = sorted({min(context, shape.max_seq_len) for context in CONTEXTS})
    powers = [1 << power for power in range(21)]
    batches = sorted({size for size in powers if size < shape.max_batch_size} | {shape.max_batch_size})
    chunks = sorted({size for size in powers if size < shape.max_num_tokens} | {shape.max_num_tokens})
    for context in contexts:
        for batch in batches:
            samples.append(_sample(clock, shape, [(1, context)] * batch, batch))
        for chunk in chunks:
            if chunk <= context:
                samples.append(_sample(clock, shape, [(chunk, context)], 1))
                samples.append(_sample(clock, shape, [(chunk, context)], 0))
            beside = min(chunk // 2, shape.max_batch_size)
            if 0 < beside < chunk and chunk - beside <= context:
                mixed = [(1, context)] * beside + [(chunk - beside, context)]
                samples.append(_sample(clock, shape, mixed, beside))
    source = f"{len(samples)} steps predicted on {clock.device.name}: {'; '.join(clock.notes)}"
    return fit_costs(samples, source, spread=False)


def _sample(clock: StepClock, shape: ReplicaShape, sequences: Sequence[tuple[int, int]], rows: int) -> StepSample:
    pairs, reads = shape.attention(sequences)
    tokens = sum(count for count, _ in sequences)
    return StepSample(tokens, len(sequences), rows, pairs, reads, clock.step(list(sequences), rows).seconds)
