"""How long it takes from a fresh process to a first token, and where that time goes.

    python benchmarks/load.py ENGINE [--repeats 7]

Minimum over the repeats, wall and processor milliseconds: import, LLM() (checksums, tokenizer, weights mapped), one
token of a short text. The engine's files are in the page cache after the first repeat.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys

CHILD = """
import json, resource, sys, time
def now():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return time.perf_counter(), used.ru_utime + used.ru_stime
marks = [now()]
from tensorwright import LLM, SamplingParams
marks.append(now())
llm = LLM(sys.argv[1])
marks.append(now())
llm.generate("import os", SamplingParams(max_tokens=1))
marks.append(now())
llm.shutdown()
print(json.dumps(marks))
"""
PARTS = ("import", "LLM()", "first token", "in all")


def measure(engine: str) -> list[tuple[float, float]]:
    """Returns (wall, processor) seconds of each of PARTS, in a process of its own."""
    done = subprocess.run([sys.executable, "-P", "-c", CHILD, engine], capture_output=True, text=True, check=True)
    marks = json.loads(done.stdout)
    spans = [*itertools.pairwise(marks), (marks[0], marks[-1])]
    return [(after[0] - before[0], after[1] - before[1]) for before, after in spans]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine")
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    runs = [measure(options.engine) for _ in range(options.repeats)]
    print(f"{'':12} {'wall ms':>8} {'cpu ms':>8}")
    for part, name in enumerate(PARTS):
        wall, cpu = (1e3 * min(run[part][i] for run in runs) for i in range(2))
        print(f"{name:12} {wall:8.0f} {cpu:8.0f}")


if __name__ == "__main__":
    main()
