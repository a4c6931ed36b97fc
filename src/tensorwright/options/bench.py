"""Declares the options of `tensorwright bench latency` and `throughput` that describe the load."""

from __future__ import annotations

from dataclasses import dataclass

from tensorwright.options.declare import At, Door, declare


@dataclass(frozen=True)
class LoadFields:
    """The load that a benchmark puts on an engine. A round is the set of requests that are submitted at once.

    warmup: the number of rounds that run first and are not measured.
    """

    input_len: int = declare(512, at={Door.BENCH: At("Tokens of a prompt, random ids.")})
    output_len: int = declare(128, at={Door.BENCH: At("Tokens generated for each.")})
    batch_size: int = declare(1, at={Door.BENCH: At("Requests that run at once.")})
    requests: int = declare(10, at={Door.BENCH: At("Requests that are measured.")})
    warmup: int = declare(1, at={Door.BENCH: At("Batches that run first and are not measured.")})
    seed: int = declare(0, at={Door.BENCH: At("Of the random ids.")})
