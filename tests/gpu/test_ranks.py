"""On two GPUs: NCCL does what ranks do together, and an engine of two ranks has the tokens of one rank.

Nobody has run these tests: there was never a machine with two GPUs. What they do is shown over stand-ins in
tests/runtime/engine/tensorrt.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.nvidia import REASON, no_driver
from support.places import ROOT
from tensorwright import LLM, SamplingParams
from tensorwright.errors import EngineError, MissingDependencyError, RankError

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(no_driver(), reason=REASON)]

PROMPTS = [{"prompt_token_ids": [(7 * i * i + 11 * i + k) % 4000 + 10 for i in range(40)]} for k in range(4)]
GREEDY = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True)


@pytest.fixture(scope="module", autouse=True)
def two_gpus() -> None:
    """Skips, with the reason, what cannot run on this machine."""
    from tensorwright.runtime.engine.tensorrt.cuda import load_driver, require_devices
    from tensorwright.runtime.engine.tensorrt.nccl import load_nccl

    try:
        require_devices(load_driver("tensorrt-rtx"), (0, 1))
        load_nccl()
    except MissingDependencyError as error:
        pytest.skip(f"ranks need two GPUs and NCCL: {error}")


def test_sums_over_two_gpus_are_right() -> None:
    """The benchmark compares every sum with what it must be."""
    script = ROOT / "benchmarks" / "gpu" / "gpu_all_reduce.py"
    done = subprocess.run([sys.executable, script, "--ranks", "2"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "GB/s in one direction" in done.stdout


@pytest.mark.parametrize("shape", [{"tensor_parallel": 2}, {"pipeline_parallel": 2}], ids=["tensor", "stages"])
def test_two_ranks_have_the_tokens_of_one(pico_model: Path, tmp_path: Path, shape: dict[str, Any]) -> None:
    from tensorwright import build

    pytest.importorskip("tensorrt_rtx")
    options: dict[str, Any] = {"target": "tensorrt-rtx", "dtype": "float32", "accuracy": "none", "max_batch_size": 8}
    found = []
    for name, ranks in (("one", {}), ("two", shape)):
        build(pico_model, tmp_path / name, **options, **ranks)
        try:
            with LLM(tmp_path / name) as llm:
                found.append([output.outputs[0].token_ids for output in llm.generate(PROMPTS, GREEDY)])
        except EngineError as error:
            if isinstance(error, RankError) or name == "two":
                raise
            pytest.skip(f"engines of the library do not run on this GPU: {error}")
    assert found[0] == found[1]
