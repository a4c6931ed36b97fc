"""A build's memory stays near its largest tensor, however large the checkpoint: measured on 628 MB of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from support.large_checkpoint import WIDE_LLAMA, write_sparse_checkpoint

# Samples this process's anonymous memory (mapped files are not in it) while it builds, above what imports took.
SCRIPT = """
import json, sys, threading, time
import tensorwright.builder.measure.reference, tensorwright.builder.build, tensorwright.builder.trace.export
import tensorwright.passes.pipeline, tensorwright.plugins.registry, transformers.models.llama.modeling_llama

def anonymous():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon"))

def watch():
    while not done.is_set():
        seen.append(anonymous())
        time.sleep(0.002)

baseline, seen, done = anonymous(), [], threading.Event()
thread = threading.Thread(target=watch)
thread.start()
try:
    tensorwright.builder.build.build(sys.argv[1], sys.argv[2], quantize=sys.argv[3] or None)
finally:
    done.set()
    thread.join()
print(json.dumps({"above_baseline": max(seen) - baseline, "baseline": baseline, "samples": len(seen)}))
"""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("quantize", ["", "int4"])
def test_anonymous_memory(tmp_path, quantize):
    """A build takes about 165 MB here. The bound of 327 MB is less than that and one copy of the largest tensor, which
    is 263 MB in bfloat16; and less than all 628 MB of weights."""
    largest = write_sparse_checkpoint(tmp_path / "model", WIDE_LLAMA)
    assert (tmp_path / "model" / "model.safetensors").stat().st_size > 6e8
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "model"), str(tmp_path / "engine"), quantize]
    result = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONSAFEPATH": "1"})
    (tmp_path / "engine" / "cpu" / "weights.bin").unlink(missing_ok=True)  # pytest keeps temporary directories
    assert result.returncode == 0, result.stderr
    measured = json.loads(result.stdout)
    assert measured["samples"] > 100
    assert measured["above_baseline"] <= largest + 64e6
