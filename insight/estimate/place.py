"""Puts a model on a device: what the model costs there, alone or shared among several devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tensorwright.errors import InvalidOptionError
from tensorwright.insight.devices.device import Device, find_device
from tensorwright.insight.devices.here import measure_here
from tensorwright.insight.estimate.costs import Costs
from tensorwright.insight.estimate.parallel import SharedCosts
from tensorwright.insight.estimate.step_clock import StepClock
from tensorwright.insight.estimate.subject import Progress, Subject, find_subject
from tensorwright.options.estimate import HERE, EstimateFields, memory_of


@dataclass(frozen=True)
class Placed:
    """A model on a device. costs: those of one device of `devices` that share every matrix. threads: of this machine; 1
    on any other device."""

    subject: Subject
    device: Device
    costs: Costs
    threads: int
    devices: int

    def clock(self) -> StepClock:
        return StepClock(self.subject, self.costs, self.device, self.devices)


def place(
    model: str | Path, asked: EstimateFields, build_options: Mapping[str, Any], progress: Progress | None = None,
    measured: Device | None = None,
) -> Placed:  # fmt: skip
    """Returns what `asked` says of the model and the device. measured: takes the place of a measurement of this
    machine. Raises what `estimate` raises."""
    memory = memory_of(asked)
    device, threads = _device(asked, measured)
    if memory is not None:
        device = replace(device, memory=memory)
    on_cpu = "cpu" in device.platform.targets
    subject = find_subject(model, dict(build_options), on_cpu, progress)
    count, costs = asked.tensor_parallel, subject.costs
    shared: Costs = SharedCosts(costs, count, subject.kv_heads) if count > 1 else costs
    return Placed(subject, device, shared, threads, count)


def _device(asked: EstimateFields, measured: Device | None) -> tuple[Device, int]:
    if asked.device != HERE:
        if asked.threads is not None:
            raise InvalidOptionError("threads is for this machine; leave it out, or leave out device")
        return find_device(asked.device), 1
    if measured is not None:
        return measured, asked.threads or 1
    return measure_here(asked.threads, asked.tensor_parallel > 1)
