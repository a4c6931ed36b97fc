"""Asks the driver to load every kernel of the file that TENSORWRIGHT_GPU_BUNDLE names.

    TENSORWRIGHT_GPU_BUNDLE=FILE python benchmarks/gpu/gpu_load.py

A driver is made for one version of CUDA. Machine code of a newer ptxas of the same major version should load; PTX of a
newer version does not.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

from gpu_device import Device
from kernel_bundle import BUNDLE

from tensorwright.errors import MissingDependencyError
from tensorwright.plugins.gpu import bundle

SHOWN = 3
"""The refused kernels that are printed."""


def load(device: Device, images: list[tuple[str, str, bytes]]) -> tuple[list[float], list[str]]:
    """Returns (seconds of each module that loads, the refusals). images: (name, entry point, code)."""
    times, refused = [], []
    for name, entry, image in images:
        begin = time.perf_counter()
        try:
            module = device.call("cuModuleLoadData", image)
            device.call("cuModuleGetFunction", module, entry.encode())
            device.call("cuModuleUnload", module)
            times.append(time.perf_counter() - begin)
        except RuntimeError as error:
            refused.append(f"{name}: {error}")
    return times, refused


def main() -> None:
    if not os.environ.get(BUNDLE):
        sys.exit(f"{BUNDLE} must name a file that kernel_bundle.py wrote")
    try:
        device = Device()
    except MissingDependencyError as error:
        sys.exit(str(error))
    kernels = bundle.from_bytes(Path(os.environ[BUNDLE]).read_bytes()).kernels.values()
    print(f"driver of CUDA {device.call('cuDriverGetVersion')}, SM {device.sm}")
    own = [(k.kernel, k.name, k.cubin) for k in kernels if k.sm == device.sm]
    texts = [(k.kernel, k.name, k.ptx.encode() + b"\0") for k in kernels if k.ptx][:SHOWN]
    bad = 0
    for what, images in ((f"machine code for SM {device.sm}", own), ("PTX, the first few", texts)):
        times, refused = load(device, images)
        print(f"{what}: {len(times)} load, {len(refused)} do not; median {1e3 * float(np.median(times or [0])):.2f} ms")
        print(*refused[:SHOWN], sep="\n")
        bad += bool(refused) and images is own
    sys.exit(bad)


if __name__ == "__main__":
    main()
