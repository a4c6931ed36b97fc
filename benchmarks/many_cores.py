"""What a step would take on a machine with many cores: a simulation, with the time of every task measured here.

    python benchmarks/many_cores.py ENGINE [--threads 1 8 64] [--nodes 1 2] [--node-gbs 250] [--batch 1] [--json FILE]

A step is cut as for N threads and run on one, which gives the time of each task of each region. Then threads take these
tasks as runtime/core/base/thread_team.h says: their own share, then what is left of others. What two cores cannot show
is assumed, and can be set: the bandwidth of a node (--node-gbs, which slows all tasks down once its threads ask for
more), what a read from another node takes (--remote, times as long), and what a line of memory takes that another core
wrote, in its cluster of 8, its node, or another node (--line-ns). It says where the time of a step goes as cores are
added; it is no measurement of such a machine.

It also measures what an empty region takes on the threads that this machine has.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorwright.runtime import _testing
from tensorwright.runtime.engine import native
from tensorwright.runtime.engine.engine_dir import EngineDir, open_engine

CLUSTER: int = _testing.CLUSTER_THREADS
"""The most threads of a cluster."""


@dataclass(frozen=True)
class Machine:
    """threads are spread evenly over the nodes. node_bytes: bytes per second that a node reads. core_bytes: what a
    thread reads while it computes: of weights, by the seconds of all tasks. line: seconds of a line of memory from the
    cluster, the node, another node."""

    threads: int
    nodes: int
    node_bytes: float
    core_bytes: float
    remote: float
    line: tuple[float, float, float]

    def crowding(self, tasks: int) -> float:
        """How much longer the tasks of a region take because the threads of a node share its memory."""
        return max(1.0, min(self.threads, tasks) / self.nodes * self.core_bytes / self.node_bytes)

    def remote_share(self, split: bool) -> float:
        """The share of its bytes that a thread reads from other nodes."""
        return 0.0 if split else (self.nodes - 1) / self.nodes

    def start(self, thread: int) -> float:
        """The seconds until a thread sees a new region: all of them read one line that the caller wrote."""
        if thread == 0:
            return 0.0
        near, node, far = self.line
        per_node = self.threads / self.nodes
        hop = near if thread < CLUSTER else node if thread < per_node else far
        return hop + 0.1 * near * thread  # the line is handed to one reader after the other

    def end(self) -> float:
        """The seconds from the last task to the caller's knowledge: a cluster counts in a line of its own, and the
        caller reads these lines, several at a time."""
        near, node, far = self.line
        if self.threads == 1:
            return 0.0
        clusters = -(-self.threads // CLUSTER)
        count = near * min(CLUSTER, self.threads) / 2
        return count + (far if self.nodes > 1 else node if clusters > 1 else near) + 0.25 * node * (clusters - 1)


def simulate(tasks: list[float], machine: Machine, slower: float) -> float:
    """Returns the seconds of a region: each thread takes its share of the tasks, then one from the fullest other."""
    threads, count = machine.threads, len(tasks)
    if threads == 1 or count <= 1:
        return sum(tasks)
    shares = [[t * slower for t in tasks[i * count // threads : (i + 1) * count // threads]] for i in range(threads)]
    for share in shares:
        share.reverse()
    ready = [(machine.start(i), i) for i in range(threads)]
    heapq.heapify(ready)
    left, last = count, 0.0
    while left:
        now, thread = heapq.heappop(ready)
        share = shares[thread] or max(shares, key=len)
        stolen = share is not shares[thread]
        now += share.pop() + (machine.line[1] if stolen else 0.0)
        left, last = left - 1, max(last, now)
        heapq.heappush(ready, (now, thread))
    return last + machine.end()


def step_seconds(regions: list[list[float]], machine: Machine, split: bool) -> dict[str, float]:
    """Returns the seconds of a step: "step", and of it "alone" what no thread helps with, and "waits" what the threads
    lose to each other."""
    *parallel, (alone,) = regions
    remote = 1 + machine.remote_share(split) * (machine.remote - 1)
    took = ideal = 0.0
    for tasks in parallel:
        slower = remote * machine.crowding(len(tasks))
        took += simulate(tasks, machine, slower)
        ideal += sum(tasks) * slower / machine.threads
    return {"step": alone + took, "alone": alone, "waits": took - ideal}


def recorded(engine: EngineDir, args: argparse.Namespace, threads: int) -> list[list[float]]:
    regions: list[list[float]] = _testing.task_seconds(
        str(engine.plan), str(engine.weights), threads, args.batch, args.tokens, args.context, args.repeats
    )
    return regions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2, 4, 8, 16, 32, 64, 128])
    parser.add_argument("--nodes", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--batch", type=int, default=1, help="sequences of the step")
    parser.add_argument("--tokens", type=int, default=1, help="computed tokens of each sequence")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=5, help="the fastest run of each task counts")
    parser.add_argument("--node-gbs", type=float, default=250.0)
    parser.add_argument("--remote", type=float, default=1.7)
    parser.add_argument("--line-ns", nargs=3, type=float, default=[40.0, 100.0, 200.0])
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    engine = open_engine(args.engine)
    read = int(native.weight_reads(engine)["bytes"])
    print(f"a step reads {read / 1e6:.0f} MB of weights; assumed: {args.node_gbs:.0f} GB/s of a node")
    rows: list[dict[str, Any]] = []
    for threads in sorted(args.threads):
        regions = recorded(engine, args, threads)
        core_bytes = read / sum(map(sum, regions[:-1]))
        for nodes in args.nodes:
            if threads < nodes:
                continue
            line = tuple(1e-9 * ns for ns in args.line_ns)
            machine = Machine(threads, nodes, 1e9 * args.node_gbs, core_bytes, args.remote, line)  # type: ignore[arg-type]
            for split in (False, True) if nodes > 1 else (False,):
                times = step_seconds(regions, machine, split)
                rows.append({"threads": threads, "nodes": nodes, "split": split, "regions": len(regions) - 1} | times)
                first = rows[0]["step"]
                name = f"{threads} threads, {nodes} nodes" + ", split" * split
                print(
                    f"{name:28} step {1e3 * times['step']:8.3f} ms"
                    f" ({first / times['step']:5.1f} times one thread), alone {1e6 * times['alone']:5.0f} us, waits "
                    f"{1e6 * times['waits']:6.0f} us, {1e6 * times['waits'] / (len(regions) - 1):.1f} us a region",
                    flush=True,
                )
    measured = {}
    usable = len(os.sched_getaffinity(0))
    for threads in sorted({usable, *(count for count in (1, 2, 4, 8, 16, 32, 64) if count < usable)}):
        for tasks in (threads, 4 * threads):
            seconds = _testing.region_seconds(threads, tasks, 20000)
            measured[f"{threads} threads, {tasks} tasks"] = statistics.median(seconds)
    print("an empty region here:", ", ".join(f"{name} {1e6 * s:.2f} us" for name, s in measured.items()))
    if args.json:
        result = {"simulated": rows, "empty_region_seconds": measured}
        Path(args.json).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
