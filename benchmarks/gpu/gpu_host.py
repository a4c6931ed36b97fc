"""Times what a GPU costs its host: starting kernels, replaying graphs, fetching logits.

    python benchmarks/gpu/gpu_host.py [--json FILE]

Needs a GPU, its driver and cuda-bindings.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

from gpu_device import Device

from tensorwright.errors import MissingDependencyError

EMPTY_KERNEL = b".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 p){ ret; }\0"
GRAPH_NODES = (20, 160, 320)
"""Kernels of a graph: a step of a model has some ten for each layer."""
LOGIT_ROWS = (1, 8, 64)
VOCABULARY = 128256


def microseconds(device: Device, stream: Any, work: Callable[[], Any], repeats: int) -> tuple[float, float]:
    """Returns the microseconds of one `work()`: of the host alone, and until the GPU has done it."""
    work()
    device.call("cuStreamSynchronize", stream)
    begin = time.perf_counter()
    for _ in range(repeats):
        work()
    host = time.perf_counter() - begin
    device.call("cuStreamSynchronize", stream)
    return 1e6 * host / repeats, 1e6 * (time.perf_counter() - begin) / repeats


def launches(device: Device, stream: Any) -> dict[str, float]:
    module = device.call("cuModuleLoadData", EMPTY_KERNEL)
    function = device.call("cuModuleGetFunction", module, b"k")
    value = np.zeros(1, np.uint64)
    pointers = np.array([value.ctypes.data], np.uint64)

    def start() -> None:
        device.call("cuLaunchKernel", function, 1, 1, 1, 32, 1, 1, 0, stream, pointers.ctypes.data, 0)

    host, whole = microseconds(device, stream, start, 2000)
    found = {"launch from Python, host, us": host, "launch from Python, with the GPU, us": whole}
    for nodes in GRAPH_NODES:
        device.call("cuStreamBeginCapture", stream, device.api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)
        for _ in range(nodes):
            start()
        graph = device.call("cuGraphInstantiate", device.call("cuStreamEndCapture", stream), 0)
        host, whole = microseconds(device, stream, lambda graph=graph: device.call("cuGraphLaunch", graph, stream), 200)
        found[f"graph of {nodes} empty kernels, host, us"] = host
        found[f"graph of {nodes} empty kernels, each, us"] = whole / nodes
    return found


def logits_to_host(device: Device, stream: Any) -> dict[str, float]:
    found = {}
    for rows in LOGIT_ROWS:
        size = rows * VOCABULARY * 4
        source, pinned = device.call("cuMemAlloc", size), device.call("cuMemHostAlloc", size, 0)
        pageable = np.empty(size, np.uint8)
        for name, target in (("pinned", pinned), ("pageable", pageable.ctypes.data)):

            def fetch(target: Any = target, source: Any = source, size: int = size) -> None:
                device.call("cuMemcpyDtoHAsync", target, source, size, stream)
                device.call("cuStreamSynchronize", stream)

            found[f"logits of {rows} rows to {name} memory, us"] = microseconds(device, stream, fetch, 20)[1]
        device.call("cuMemFree", source)
        device.call("cuMemFreeHost", pinned)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    try:
        device = Device()
    except MissingDependencyError as error:
        sys.exit(str(error))
    stream = device.call("cuStreamCreate", device.api.CUstream_flags.CU_STREAM_NON_BLOCKING)
    found = {**launches(device, stream), **logits_to_host(device, stream)}
    for name, value in found.items():
        print(f"{name:48} {value:10.2f}")
    if args.json:
        Path(args.json).write_text(json.dumps({"sm": device.sm, **found}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
