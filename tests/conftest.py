"""What all tests share: engines of the bundled model, built once, and a note of what this machine cannot run."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def pico_model() -> Path:
    """The bundled checkpoint: a trained Llama of 16 M parameters, bfloat16."""
    return ROOT / "models" / "pico"


@pytest.fixture(scope="session")
def pico_engine(pico_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An engine of pico as it is stored, in bfloat16."""
    return _engine_once(tmp_path_factory, pico_model, "bfloat16")


@pytest.fixture(scope="session")
def pico_engine_float32(pico_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _engine_once(tmp_path_factory, pico_model, "float32")


@pytest.fixture(scope="session")
def pico_engine_int8_kv(pico_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """bfloat16 with an int8 KV cache."""
    return _engine_once(tmp_path_factory, pico_model, "bfloat16", "int8")


@pytest.fixture(scope="session")
def pico_engine_onnx(pico_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """float32, of target onnx."""
    return _engine_once(tmp_path_factory, pico_model, "float32", target="onnx")


def _engine_once(
    factory: pytest.TempPathFactory, model: Path, dtype: str, kv: str = "auto", target: str = "cpu"
) -> Path:
    """Built once per run, whichever of xdist's workers comes first. TENSORWRIGHT_TEST_ENGINES: a folder of engines that
    were built before, for an environment that cannot build."""
    from tensorwright import build

    base = factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    shared = Path(os.environ.get("TENSORWRIGHT_TEST_ENGINES", shared))
    engine = shared / f"{model.name}-{dtype}-{kv}-{target}"
    with (shared / f"{engine.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not engine.exists():
            build(model, engine, target=target, dtype=dtype, kv_cache_dtype=kv, accuracy="none")
    return engine


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Kernels that this processor lacks are skipped by their tests; say so where everybody looks."""
    skipped = terminalreporter.stats.get("skipped", [])
    servers = [report for report in skipped if "serving/tritonserver/" in report.nodeid]
    if servers:
        terminalreporter.write_line(f"not covered here, the real tritonserver: {servers[0].longrepr[2]}")
    try:
        from tensorwright.runtime import _runtime
    except ImportError:
        return
    missing = [name for name, present in _runtime.cpu_features().items() if not present]
    if missing:
        terminalreporter.write_line(f"not covered here, the processor lacks: {', '.join(missing)}")
