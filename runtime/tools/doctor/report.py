"""Makes the report that a user sends when an engine does not run as it should: the facts of `doctor`, what the
installed TensorRT packages lack of what we call, and what became of a short run of the engine."""

from __future__ import annotations

import importlib
import os
import time
import traceback
from typing import Any

from tensorwright.engine_format.tensorrt_calls import missing_calls
from tensorwright.engine_format.tensorrt_manifest import MODULES
from tensorwright.errors import reason

TOLD_VARIABLES = ("TENSORWRIGHT_", "CUDA_", "NVIDIA_", "LD_LIBRARY_PATH", "OMP_")
"""How the names of variables begin that a report tells. Of others it tells nothing: they may hold secrets."""
SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSWORD")
PROMPT, TOKENS = [1, 2, 3, 4, 5, 6, 7, 8], 16
"""The token ids of the run, and how many greedy tokens it asks for."""


def add_report(facts: dict[str, Any], engine: str | None) -> dict[str, Any]:
    """Returns the facts of `doctor` with: environment, tensorrt, and run (None without an engine).

    It runs the engine, and an error of that is a part of the report with its traceback.
    """
    return {
        **facts,
        "environment": told_environment(),
        "tensorrt": {flavour: examine_bindings(flavour) for flavour in MODULES},
        "run": None if engine is None else run_shortly(engine),
    }


def told_environment() -> dict[str, str]:
    """Returns the variables that change what we do; those whose names speak of secrets without their values."""
    told = {name: value for name, value in sorted(os.environ.items()) if name.startswith(TOLD_VARIABLES)}
    return {name: "(set)" if any(word in name for word in SECRET_WORDS) else value for name, value in told.items()}


def examine_bindings(flavour: str) -> dict[str, Any]:
    """Returns version and missing of the package of a target: the names that it lacks. error: why it does not load."""
    try:
        module = importlib.import_module(MODULES[flavour])
    except (ImportError, OSError) as error:
        return {"version": None, "missing": [], "error": reason(error)}
    return {"version": module.__version__, "missing": missing_calls(module, flavour), "error": None}


def run_shortly(engine: str) -> dict[str, Any]:
    """Opens the engine and computes some greedy tokens. Returns tokens, seconds to open and seconds to compute; or
    error and traceback."""
    from tensorwright.runtime.api.llm import LLM
    from tensorwright.runtime.requests.sampling_params import SamplingParams

    begin = time.perf_counter()
    try:
        with LLM(engine, max_batch_size=1) as llm:
            opened = time.perf_counter()
            params = SamplingParams(max_tokens=TOKENS, temperature=0, ignore_eos=True, detokenize=False)
            made = llm.generate({"prompt_token_ids": PROMPT}, params)
            done = time.perf_counter()
    except Exception as error:  # whatever it is, it is what the report is for
        return {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc().splitlines()}
    tokens = made.outputs[0].token_ids
    return {"tokens": tokens, "open_seconds": round(opened - begin, 3), "seconds": round(done - opened, 4)}
