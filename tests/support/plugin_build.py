"""Child process of tests/plugins/tensorrt: TensorRT for RTX parses and builds networks of plugins, one after another.

    python -m support.plugin_build JOBS.json      a list of {"onnx", "plan", "sms", "profiles", "fault"?}
Prints a list of {"error", "layers", "serialized"}. TensorRT may end the process, so the tests call it like this.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import tensorrt_rtx as trt

from tensorwright.plugins.gpu import creators, tensorrt_base
from tensorwright.plugins.gpu.build_context import building_for
from tensorwright.plugins.gpu.tensorrt_op import PluginOp

FAULTS = ("kernels", "workspace_bytes", "alias_of", "no alias")
_fault = ""


class Log(trt.ILogger):
    """Keeps the list of layers."""

    def __init__(self) -> None:
        trt.ILogger.__init__(self)
        self.layers = ""

    def log(self, severity: Any, message: str) -> None:
        if message.startswith("Layers:"):
            self.layers = message


def build(job: dict[str, Any], log: Log) -> bytes:
    builder = trt.Builder(log)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    config = builder.create_builder_config()
    config.set_preview_feature(trt.PreviewFeature.ALIASED_PLUGIN_IO_10_03, True)
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    config.num_compute_capabilities = len(job["sms"])
    for index, sm in enumerate(job["sms"]):
        config.set_compute_capability(getattr(trt.ComputeCapability, f"SM{sm}"), index)
    for shapes in job["profiles"]:
        profile = builder.create_optimization_profile()
        for name, (least, usual, most) in shapes.items():
            profile.set_shape(name, least, usual, most)
        config.add_optimization_profile(profile)
    with building_for(job["sms"]):
        parser = trt.OnnxParser(network, log)
        if not parser.parse(Path(job["onnx"]).read_bytes()):
            raise RuntimeError(parser.get_error(0).desc())
        plan = builder.build_serialized_network(network, config)
        if plan is None:
            raise RuntimeError("no plan")
    return bytes(plan)


def with_faults(op: PluginOp) -> PluginOp:
    """The op, raising in the function that the job names."""

    def wrap(name: str) -> Any:
        function = getattr(op, name)

        def call(*args: Any) -> Any:
            if _fault == name:
                raise ValueError(f"broken on purpose in {name}")
            return function(*args)

        return call

    return dataclasses.replace(op, kernels=wrap("kernels"), workspace_bytes=wrap("workspace_bytes"))


def alias_with_fault(self: PluginOp, output: int, attrs: Any) -> str:
    if _fault == "alias_of":
        raise ValueError("broken on purpose in alias_of")
    return "" if _fault == "no alias" else self.outputs_of(attrs)[output].alias


def watch_serialization(seen: list[list[Any]]) -> None:
    """Notes what each layer writes into the plan."""
    write = tensorrt_base.PluginMethods.get_fields_to_serialize

    def call(self: Any) -> Any:
        fields = write(self)
        carries = any(field.name == "kernels" for field in fields)
        seen.append([self.layer, self.op.name, self.digest, carries, self.workspace_bytes])
        return fields

    tensorrt_base.PluginMethods.get_fields_to_serialize = call  # type: ignore[method-assign]


def main() -> None:
    global _fault
    jobs = json.loads(Path(sys.argv[1]).read_text())
    PluginOp.alias_of = alias_with_fault  # type: ignore[method-assign]
    seen: list[list[Any]] = []
    watch_serialization(seen)
    creators.register(trt, tuple(map(with_faults, creators.OPS)))
    results = []
    for job in jobs:
        _fault = job.get("fault", "")
        assert _fault in ("", *FAULTS)
        log, error, plan = Log(), "", b""
        seen.clear()
        try:
            plan = build(job, log)
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"
        Path(job["plan"]).write_bytes(plan)
        results.append({"error": error, "layers": log.layers, "serialized": list(seen)})
    print(json.dumps(results))


if __name__ == "__main__":
    main()
