"""Options of the build commands that belong to some targets: build-engine and tensorwright rebuild have them all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from tensorwright.builder.options import ACTIVATIONS, INT4_KERNELS
from tensorwright.engine_format.targets import DTYPE_CHOICES

DTYPE_METAVAR = f"[{'|'.join(DTYPE_CHOICES)}]"
"""BuildOptions knows which of them a target has, and their short names."""
TARGET_OPTIONS = (
    click.option(
        "--activations", type=click.Choice(ACTIVATIONS),
        help="With --target onnx and --quantize: int8 rounds activations too, as target cpu does, which is much faster "
        "on processors. [default: auto, which leaves them as they are]",
    ),
    click.option(
        "--sm", type=int, multiple=True,
        help="TensorRT: a compute capability that the engine is for, such as 89; may be repeated for tensorrt-rtx. "
        "[default: those that the library chooses]",
    ),
    click.option("--max-batch-size", type=click.IntRange(min=1), help="TensorRT: sequences in a step. [default: 64]"),
    click.option("--max-num-tokens", type=click.IntRange(min=1), help="TensorRT: tokens in a step. [default: 2048]"),
    click.option(
        "--int4-kernel", type=click.Choice(INT4_KERNELS),
        help="TensorRT: who multiplies int4 weights, the library or our plugin. [default: tensorrt]",
    ),
)  # fmt: skip


def target_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator. What was not given is None or empty: `given` drops it."""
    for option in reversed(TARGET_OPTIONS):
        command = option(command)
    return command


def given(options: dict[str, Any]) -> dict[str, Any]:
    """Those that were given."""
    return {name: value for name, value in options.items() if value not in (None, ())}
