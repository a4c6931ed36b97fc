"""Times what the ranks of an engine do together on the GPUs of one machine, against the link between two of them.

    python benchmarks/gpu/gpu_all_reduce.py [--ranks 2] [--hidden 4096] [--json FILE]

Needs as many GPUs as ranks, their driver, cuda-bindings and NCCL (the extra nccl). Every rank is a process, as in an
engine, and calls NCCL as the plugins of an engine do. Of each size the sum is compared with what it must be. The link
is what ncclSend brings from one GPU to the next in a large message.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tensorwright.errors import TensorwrightError
from tensorwright.plugins.gpu.collective_call import ALL_REDUCE, RECEIVE, SEND, CollectiveCall
from tensorwright.plugins.gpu.launch import Tensor
from tensorwright.runtime import _runtime
from tensorwright.runtime.engine.ranks.group import RankGroup
from tensorwright.runtime.engine.tensorrt.communicators import Communicators
from tensorwright.runtime.engine.tensorrt.cuda import Cuda, load_driver
from tensorwright.runtime.engine.tensorrt.nccl import load_nccl

TOKENS = (1, 8, 64, 512, 2048)
"""The rows of an activation that a step of so many tokens sums."""
LINK_BYTES = 1 << 28
REPEATS = 100
PATIENCE_S = 120.0


class Device:
    """One GPU, a stream on it, and the ranks that meet there."""

    def __init__(self, rank: int, memory: str, tensor: int, stages: int) -> None:
        self.cuda = Cuda(load_driver("tensorrt-rtx"), rank)
        self.stream = self.cuda.make_stream()
        seat = _runtime.shared_ranks(memory, rank, PATIENCE_S, 2000)
        count = tensor * stages
        self.ranks = Communicators(load_nccl(), RankGroup(seat, tensor, stages, PATIENCE_S, rank, count))
        self.ranks.connect()

    def tensor(self, name: str, rows: int, columns: int, value: float | None = None) -> Tensor:
        """Returns bfloat16 numbers on the device, all of one value, or whatever lies there."""
        size = 2 * rows * columns
        made = Tensor.dense(name, self.cuda.allocate(size), (rows, columns), "bfloat16")
        if value is not None:
            host = self.cuda.allocate_host(size)
            host.view(np.uint16)[:] = np.float32(value).view(np.uint32) >> 16
            self.cuda.copy_to_device(made.address, host, self.stream)
            self.cuda.synchronize(self.stream)
            self.cuda.free_host(host)
        return made

    def values(self, tensor: Tensor) -> set[float]:
        """Returns the different numbers of a tensor."""
        host = self.cuda.allocate_host(2 * tensor.shape[0] * tensor.shape[1])
        self.cuda.copy_to_host(host, tensor.address, self.stream)
        self.cuda.synchronize(self.stream)
        found = {float((np.uint32(bits) << 16).view(np.float32)) for bits in np.unique(host.view(np.uint16))}
        self.cuda.free_host(host)
        return found

    def microseconds(self, call: CollectiveCall, repeats: int = REPEATS) -> tuple[float, float]:
        """Returns the microseconds of one call: of the host alone, and until the GPUs have done it."""
        prepared = self.ranks.prepare(call)

        def start() -> None:
            self.ranks.start(prepared, int(self.stream))

        start()
        self.cuda.synchronize(self.stream)
        begin = time.perf_counter()
        for _ in range(repeats):
            start()
        host = time.perf_counter() - begin
        self.cuda.synchronize(self.stream)
        return 1e6 * host / repeats, 1e6 * (time.perf_counter() - begin) / repeats


def all_reduces(rank: int, ranks: int, memory: str, hidden: int) -> dict[str, Any]:
    """Returns the times of a sum of each size. Raises AssertionError for a wrong sum."""
    device = Device(rank, memory, ranks, 1)
    found = {}
    for tokens in TOKENS:
        source, target = device.tensor("x", tokens, hidden, rank + 1), device.tensor("y", tokens, hidden)
        host, whole = device.microseconds(CollectiveCall(ALL_REDUCE, source, target))
        if device.values(target) != {ranks * (ranks + 1) / 2}:
            raise AssertionError(f"{tokens} tokens: the sum has the numbers {device.values(target)}")
        size = 2 * tokens * hidden
        found[str(tokens)] = {
            "bytes": size,
            "host_us": round(host, 2),
            "us": round(whole, 2),
            "link_gb_per_s": round(2 * (ranks - 1) / ranks * size / whole / 1e3, 2),
        }
    device.ranks.close()
    return found


def link(rank: int, ranks: int, memory: str, hidden: int) -> dict[str, Any]:
    """Returns what rank 0 sends to rank 1 in a second; the others do not take part."""
    device = Device(rank, memory, 1, ranks)
    rate = {}
    if rank < 2:
        tensor = device.tensor("x", LINK_BYTES // 2 // hidden, hidden, 1.0)
        call = CollectiveCall(SEND, tensor, None) if rank == 0 else CollectiveCall(RECEIVE, None, tensor)
        whole = device.microseconds(call, 10)[1]
        rate = {"gb_per_s": round(2 * tensor.shape[0] * tensor.shape[1] / whole / 1e3, 2)}
    device.ranks.close()
    return rate


def worker(work: Callable[..., Any], rank: int, results: Any, *arguments: Any) -> None:
    """Runs one rank, and says what it found or why it failed."""
    try:
        results.put((rank, work(rank, *arguments), ""))
    except (TensorwrightError, AssertionError) as error:
        results.put((rank, None, f"{type(error).__name__}: {error}"))


def on_all_ranks(work: Callable[..., Any], ranks: int, *arguments: Any) -> Any:
    """Returns what rank 0 found. Ends the program with the first failure."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        memory = str(Path(folder) / "memory")
        _runtime.create_rank_memory(memory, ranks)
        results = context.Queue()
        processes = [
            context.Process(target=worker, args=(work, rank, results, ranks, memory, *arguments))
            for rank in range(ranks)
        ]
        for process in processes:
            process.start()
        found = sorted((results.get(timeout=2 * PATIENCE_S) for _ in processes), key=lambda result: result[0])
        for process in processes:
            process.join()
    failures = [f"rank {rank}: {why}" for rank, _, why in found if why]
    if failures:
        raise SystemExit("\n".join(failures))
    return found[0][1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--json")
    asked = parser.parse_args()
    report = {
        "ranks": asked.ranks,
        "hidden": asked.hidden,
        "link": on_all_ranks(link, asked.ranks, asked.hidden),
        "all_reduce": on_all_ranks(all_reduces, asked.ranks, asked.hidden),
    }
    print(f"link: {report['link']['gb_per_s']} GB/s in one direction")
    for tokens, row in report["all_reduce"].items():
        print(
            f"{tokens:>5} tokens, {row['bytes']:>9} bytes: {row['us']:>8} us, of the host {row['host_us']:>6}; "
            f"{row['link_gb_per_s']} GB/s over each link"
        )
    if asked.json:
        Path(asked.json).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
