"""TensorRT engines of several ranks over stand-ins: each rank a process with a GPU that is made up, NCCL's stand-in
(fake_nccl.c), and the ONNX model of its plan in ONNX's reference evaluator.

`build_ranks` builds such an engine: its "plans" are the ONNX models themselves. As a program it is the process of a
rank that is not rank 0, as runtime/engine/ranks/follow.py is. FAKE_GPUS says how many GPUs there are.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from support.fake_gpu import FakeCuda
from support.fake_nccl import meet
from support.fake_tensorrt import FakePlugins, FakeTensorRt
from tensorwright.builder.emit.onnx.reference_ops import evaluator
from tensorwright.runtime.engine.engine_dir import open_engine
from tensorwright.runtime.engine.ranks import follow
from tensorwright.runtime.engine.tensorrt import executor, library
from tensorwright.runtime.engine.tensorrt.nccl import LIBRARY


class OnnxNetwork:
    """(inputs, outputs) -> None, for FakeTensorRt: the model in `path`, whose ranks meet by what `plugins` have."""

    def __init__(self, path: Path, plugins: Any):
        nccl = Path(os.environ[LIBRARY])
        self.session = evaluator(path, lambda op, x, attrs: meet(plugins().collectives, nccl, op, x, attrs))

    def __call__(self, inputs: dict[str, np.ndarray], outputs: dict[str, np.ndarray]) -> None:
        results = self.session.run(None, {name: array.copy() for name, array in inputs.items()})
        for name, result in zip(self.session.output_names, results, strict=True):
            if name in outputs:
                outputs[name][...] = result


def stand_in(path: Path, rank: int, put: Any) -> FakeCuda:
    """Puts stand-ins in place of the driver and TensorRT. put(object, name, value) sets an attribute."""
    cuda = FakeCuda(devices=int(os.environ["FAKE_GPUS"]))
    engine = open_engine(path, rank=rank)
    plan = engine.path / executor.plan_files(engine)[0]
    trt = FakeTensorRt(cuda, executor.read_manifest(engine), lambda inputs, outputs: None, plan.read_bytes())
    trt.network = OnnxNetwork(plan, lambda: trt.plugins)
    put(executor, "load_bindings", lambda flavour: trt)
    put(executor, "load_driver", lambda extra: cuda)
    put(library, "EnginePlugins", FakePlugins)
    return cuda


def build_ranks(model: Path, out: Path, put: Any, **options: Any) -> Path:
    """Builds an engine of target tensorrt-rtx without the library: everything but the plans is the builder's."""
    from tensorwright import build
    from tensorwright.builder.target import tensorrt

    def run_child(job: Any, found: Any, advance: Any, *, folder: Path) -> dict[str, Any]:
        import onnx

        onnx.save(onnx.load(folder / job.model), folder / job.plan)
        return {"library_version": "1.7.1.116", "fresh_kernels": 0, "plan_bytes": (folder / job.plan).stat().st_size}

    put(tensorrt, "run_child", run_child)
    put(tensorrt, "_check_layers", lambda path, manifest, facts: "not checked")
    build(model, out, target="tensorrt-rtx", sm=[80], accuracy="none", **options)
    return out


if __name__ == "__main__":
    stand_in(Path(sys.argv[1]), int(sys.argv[sys.argv.index("--rank") + 1]), setattr)
    sys.exit(follow.main())
