"""The targets that an engine can be built for: the files of their engines, and what such engines can hold."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """The facts of one target.

    files: relative paths that every engine of the target has; the last one describes the engine. weights: the largest
    of them, which holds the weights that a running engine keeps in memory. dtypes: the types its engines compute in.
    shares_prefixes: whether its KV cache has blocks that sequences share.
    """

    name: str
    files: tuple[str, ...]
    weights: str
    dtypes: tuple[str, ...]
    shares_prefixes: bool = True


def _gpu_target(name: str) -> Target:
    plan = "tensorrt/rank0.engine"
    return Target(name, (plan, "tensorrt/io.json"), plan, ("float32", "float16", "bfloat16"))


TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        Target("cpu", ("cpu/weights.bin", "cpu/plan.bin"), "cpu/weights.bin", ("float32", "bfloat16")),
        Target(
            "onnx",
            ("onnx/model.onnx", "onnx/model.onnx.data", "onnx/io.json"),
            "onnx/model.onnx.data",
            ("float32", "float16"),
            shares_prefixes=False,
        ),
        _gpu_target("tensorrt"),
        _gpu_target("tensorrt-rtx"),
    )
}
"""By the name in config.json."""
