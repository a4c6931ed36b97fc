"""Answers whether a model fits on a device, and how fast it would be there: the estimate behind the command."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorwright.engine_format.dtypes import ITEM_BYTES
from tensorwright.errors import InvalidOptionError
from tensorwright.insight.devices.device import Device
from tensorwright.insight.estimate.costs import Costs, sequence_bytes, token_bytes
from tensorwright.insight.estimate.place import Placed, place
from tensorwright.insight.estimate.roofline import StepTime, process_bytes, time_of
from tensorwright.insight.estimate.step_clock import CHUNK, StepClock
from tensorwright.insight.estimate.subject import Progress, Subject
from tensorwright.options.build import BuildFields
from tensorwright.options.declare import check_values, options_in
from tensorwright.options.estimate import MAX_BATCH, EstimateFields, Lengths, lengths_of


@dataclass(frozen=True)
class Memory:
    """Bytes on each device. token: one more position of a sequence, while no window is full. sequence: what a sequence
    of `context` positions holds. waste: the part of it that holds no position, at this length."""

    available: int
    weights: int
    token: float
    sequence: int
    waste: int
    caches: int
    activations: int
    process: int

    @property
    def total(self) -> int:
        return self.weights + self.caches + self.activations + self.process

    @property
    def fits(self) -> bool:
        return self.total <= self.available


@dataclass(frozen=True)
class Latency:
    """Seconds. first: until the first token of one prompt, images included. token: each further token of `batch`
    sequences that run at once. images: the part of `first` that the images take. total: the whole answer of a request
    whose prompt runs alone."""

    first: float
    token: float
    images: float
    total: float
    prefill: StepTime
    decode: StepTime


@dataclass(frozen=True)
class Batch:
    """Decoding with `sequences` at once. tokens_per_second: of all of them."""

    sequences: int
    token_seconds: float
    tokens_per_second: float
    bound: str
    intensity: float
    bytes: int


@dataclass(frozen=True)
class Estimate:
    """An answer. largest_batch: sequences of `context` positions that fit, 0 if none does and at
    most MAX_BATCH. longest_context: positions
    of each of `batch` sequences that fit, at most the model's. turns_at: the smallest batch whose decoding waits for
    arithmetic and not for memory, None if none does. turning_point: the operations per byte at which that is. notes:
    what the figures rest on. cannot: what this project cannot run there."""

    placed: Placed
    asked: EstimateFields
    lengths: Lengths
    memory: Memory
    latency: Latency | None
    batches: tuple[Batch, ...]
    largest_batch: int
    longest_context: int
    turns_at: int | None
    turning_point: float
    notes: tuple[str, ...]
    cannot: tuple[str, ...]

    @property
    def subject(self) -> Subject:
        return self.placed.subject

    @property
    def device(self) -> Device:
        return self.placed.device

    @property
    def devices(self) -> int:
        return self.placed.devices


def estimate(
    model: str | Path,
    *,
    build_options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    measured: Device | None = None,
    **options: Any,
) -> Estimate:
    """Estimates memory and speed of a model on a device. No weights are read.

    model: a checkpoint directory, a GGUF file, a hub name, a config.json, or an engine of target cpu. build_options:
    dtype, quantize, quantize_config, sparsity, kv_cache_dtype, as `build` has them. options: the fields of
    EstimateFields. measured: takes the place of a measurement of this machine.
    Raises InvalidOptionError, CheckpointError, EngineError, MissingDependencyError.
    """
    asked = EstimateFields(**options)
    check_values(asked, EstimateFields)
    lengths = lengths_of(asked)
    placed = place(model, asked, dict(build_options or {}), progress, measured)
    return _answer(placed, asked, _with_images(lengths, asked, placed.subject))


def _with_images(lengths: Lengths, asked: EstimateFields, subject: Subject) -> Lengths:
    """Returns the lengths with the tokens that images become."""
    if asked.images == 0:
        return lengths
    if subject.vision is None:
        raise InvalidOptionError(f"images: {subject.name} names no vision_config with an image_size; leave images out")
    more = asked.images * subject.vision.passed_on
    return Lengths(lengths.prompt + more, lengths.tokens, lengths.context + more)


def _answer(placed: Placed, asked: EstimateFields, lengths: Lengths) -> Estimate:
    subject, device, shared, threads = placed.subject, placed.device, placed.costs, placed.threads
    costs = subject.costs
    if lengths.context > costs.max_seq_len:
        raise InvalidOptionError(
            f"context: {subject.name} has {costs.max_seq_len} positions, and {lengths.context} are asked for"
        )
    memory = _memory(shared, subject, device, asked, lengths, threads)
    clock = placed.clock()
    free = device.memory - memory.weights - memory.activations - memory.process

    def taken(sequences: int) -> int:
        step = _activations(shared, sequences, threads)
        return memory.weights + memory.process + step + sequences * memory.sequence

    largest = _last(MAX_BATCH, lambda sequences: taken(sequences) <= device.memory)
    longest = _last(shared.max_seq_len, lambda n: asked.batch * sequence_bytes(shared, n) <= free)
    latency = _latency(clock, asked, lengths)
    notes = [*subject.notes, f"{device.name}: {device.source}", *clock.notes]
    batches = tuple(_batches(clock, lengths, largest, taken, asked))
    return Estimate(
        placed, asked, lengths, memory, latency, batches,
        largest, longest, clock.turns_at(lengths.context), device.turning_point(clock.arithmetic), tuple(notes),
        tuple(_cannot(subject, device, placed.devices)),
    )  # fmt: skip


def _memory(
    costs: Costs, subject: Subject, device: Device, asked: EstimateFields, lengths: Lengths, threads: int
) -> Memory:
    each = sequence_bytes(costs, lengths.context)
    weights = costs.weights_bytes
    if asked.images and subject.vision is not None:
        weights += subject.vision.parameters * ITEM_BYTES[subject.dtype]
    exact = lengths.context * token_bytes(costs) + costs.state_bytes
    waste = max(0, round(each - exact)) if not any(group.window for group in costs.groups) else 0
    return Memory(
        device.memory, weights, token_bytes(costs), each, waste, each * asked.batch,
        _activations(costs, asked.batch, threads), process_bytes(device.platform.name),
    )  # fmt: skip


def _activations(costs: Costs, sequences: int, threads: int) -> int:
    """Returns the bytes that the largest step takes while that many sequences run."""
    step = costs.memory(max(CHUNK, sequences), sequences, sequences, threads)
    return step.activations + step.scratch


def _last(most: int, fits: Callable[[int], bool]) -> int:
    """Returns the largest number up to `most` that fits, where all below it do; 0 if none does."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def _latency(clock: StepClock, asked: EstimateFields, lengths: Lengths) -> Latency:
    prefill = clock.prefill(lengths.prompt)
    images, vision = 0.0, clock.subject.vision
    if asked.images and vision is not None:
        images = time_of(vision.work(asked.images, clock.subject.dtype), clock.device).seconds
    decode = clock.decode(asked.batch, lengths.middle)
    first = images + prefill.seconds
    return Latency(first, decode.seconds, images, first + decode.seconds * (lengths.tokens - 1), prefill, decode)


def _batches(
    clock: StepClock, lengths: Lengths, largest: int, taken: Callable[[int], int], asked: EstimateFields
) -> list[Batch]:
    """Returns decoding by batch: powers of two up to 256 that fit, the batch that was asked for, and the largest."""
    sizes = {1 << power for power in range(9) if 1 << power <= largest} | {asked.batch}
    sizes |= {largest} if 0 < largest <= 1024 else set()
    rows = []
    for size in sorted(sizes):
        time = clock.decode(size, lengths.middle)
        rows.append(Batch(size, time.seconds, size / time.seconds, time.bound, time.intensity, taken(size)))
    return rows


def _cannot(subject: Subject, device: Device, count: int) -> list[str]:
    """Returns what this project cannot run of the question, in words."""
    faults = []
    if subject.refusal is not None:
        faults.append(f"the model is not built by this project: {subject.refusal}")
    if not device.platform.targets or "cpu" not in device.platform.targets:
        faults.append(f"{device.name}: {device.platform.runs}")
    if subject.vision is not None:
        faults.append("engines read text alone: the vision tower is estimated, and not built")
    elif subject.other_parts:
        faults.append(f"engines read text alone: {', '.join(subject.other_parts)} are left out")
    shares = next(option.targets for option in options_in(BuildFields) if option.name == "tensor_parallel")
    if count > 1 and not set(shares) & set(device.platform.targets):
        faults.append(f"no target of this project shares a model among several {device.name}")
    return faults
