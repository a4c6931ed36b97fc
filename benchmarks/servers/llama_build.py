"""Compiles llama-server for this processor from the sources of the peer's llama-cpp-python package."""

from __future__ import annotations

import os
import subprocess
import tarfile
from pathlib import Path

from environments import Cache, run_logged
from worker import PeerError

OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DLLAMA_OPENSSL=OFF", "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_APP=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF",
)  # fmt: skip
VERSION = "import importlib.metadata as m; print(m.version('llama-cpp-python'))"


def build(own: Cache, python: str) -> Path:
    """Returns the server of the version that `python` has installed. The first call takes minutes."""
    place = own.folder / "llama-server"
    server = place / "build" / "bin" / "llama-server"
    if server.exists():
        return server
    version = subprocess.run([python, "-c", VERSION], check=True, capture_output=True, text=True).stdout.strip()
    sources = _sources(own, place, python, version)
    log = own.logs / "build-llama-server.log"
    run_logged(["cmake", "-S", str(sources), "-B", str(place / "build"), *OPTIONS], log)
    jobs = str(len(os.sched_getaffinity(0)))
    run_logged(["cmake", "--build", str(place / "build"), "--target", "llama-server", "--parallel", jobs], log)
    if not server.exists():
        raise PeerError(f"building llama-server left no {server}; see {log}, or give --llama-server")
    return server


def _sources(own: Cache, place: Path, python: str, version: str) -> Path:
    sources = place / "source" / "vendor" / "llama.cpp"
    if not sources.exists():
        place.mkdir(parents=True, exist_ok=True)
        wanted = [f"llama-cpp-python=={version}", "--no-deps", "--no-binary", "llama-cpp-python", "-d", str(place)]
        run_logged([python, "-m", "pip", "download", *wanted], own.logs / "download-llama-server.log")
        (archive,) = place.glob("llama_cpp_python-*.tar.gz")
        with tarfile.open(archive) as packed:
            packed.extractall(place, filter="data")
        (place / archive.name.removesuffix(".tar.gz")).rename(place / "source")
    return sources
