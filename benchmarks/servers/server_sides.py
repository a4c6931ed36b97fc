"""Says how each side is served: this project by `tensorwright serve`, llama.cpp by its llama-server, OpenVINO GenAI's
ContinuousBatchingPipeline behind openvino_server.py.

The peers' environments and conversions are read from the cache of benchmarks/peers. Files made here lie in a folder of
their own: an engine of this project's present code, llama-server, and its GGUF file with a vocabulary.
All sides get the same number of sequences at once, tokens of a step and threads. They have no cache of prefixes, unless
the load is one whose prompts begin alike. Then each has the best that its documentation advises:

* this project: the defaults of `tensorwright serve`.
* llama-server: --cache-prompt, by which a slot keeps its last prompt, and a request goes to the slot with the longest
  common beginning; --cache-reuse 256, which shifts equal parts behind a difference; --cache-ram, where prompts stay
  that slots gave up (its README, and pull request 16391).
* OpenVINO GenAI: enable_prefix_caching of SchedulerConfig, and a cache of as many GiB.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import llama_build
from environments import OURS, Cache, Side, run_logged
from server_process import ServerProcess, free_port
from worker import PeerError

FOLDER = Path(__file__).resolve().parent
LLAMA, OPENVINO = "llama.cpp", "openvino-genai"
CACHE_REUSE = "256"
"""The least equal tokens that llama-server shifts; its documentation's number."""
DEFAULT_SIDES = [f"{OURS}=int4", f"{LLAMA}=Q4_0", f"{OPENVINO}=int4:g128"]


@dataclass(frozen=True)
class Capacity:
    """length: the tokens of the longest sequence. prefix_gib: GiB that the peers may keep of prompts that begin alike;
    0 means that no side keeps any."""

    threads: int
    sequences: int
    step_tokens: int
    length: int
    prefix_gib: int = 0


class Sides:
    def __init__(self, peers: Cache, own: Cache, llama_server: Path | None):
        self.peers, self.own, self.llama_server = peers, own, llama_server

    def prepare(self, side: Side) -> Path:
        """Returns the model of the side's server, converted if it is not there."""
        if side.peer not in (OURS, LLAMA, OPENVINO):
            raise PeerError(f"it has no server here; those with one are {OURS}, {LLAMA}, {OPENVINO}")
        checkpoint = self.peers.checkpoint()
        if side.peer == OURS:
            self.own.convert(side, checkpoint, again=True)
            return self.own.models / side.file_name / "engine"
        self.peers.convert(side, checkpoint, again=False)
        converted = self.peers.models / side.file_name
        if side.peer == OPENVINO:
            return converted
        self.llama_server = self.llama_server or llama_build.build(self.own, self.peers.python(LLAMA))
        return self._with_vocabulary(side, converted / "model.gguf")

    def _with_vocabulary(self, side: Side, source: Path) -> Path:
        """Adds the vocabulary that llama-server needs, which the benchmark's GGUF files leave out."""
        out = self.own.models / f"{side.file_name}.gguf"
        if not out.exists() or out.stat().st_mtime < source.stat().st_mtime:
            script = str(FOLDER / "gguf_vocabulary.py")
            log = self.own.logs / f"vocabulary-{side.file_name}.log"
            run_logged([self.peers.python(LLAMA), script, str(source), str(out)], log, self.peers.variables(LLAMA))
        return out

    def start(self, side: Side, model: Path, capacity: Capacity) -> ServerProcess:
        port = free_port()
        log = self.own.logs / f"serving-{side.file_name}.log"
        command, ready = self._command(side, str(model), port, capacity)
        variables = self.peers.variables(side.peer) if side.peer != OURS else {}
        return ServerProcess(command, port, ready, log, variables | {"OMP_NUM_THREADS": str(capacity.threads)})

    def _command(self, side: Side, model: str, port: int, capacity: Capacity) -> tuple[list[str], str]:
        threads, sequences, step = map(str, (capacity.threads, capacity.sequences, capacity.step_tokens))
        if side.peer == OURS:
            command = [sys.executable, "-P", "-m", "tensorwright.runtime.commands.cli", "serve", f"{OURS}={model}"]
            network = ["--port", str(port), "--log-level", "warning", "--threads", threads]
            caching = [] if capacity.prefix_gib else ["--no-prefix-caching"]
            return [*command, *network, "--max-batch-size", sequences, "--max-num-tokens", step, *caching], "/ready"
        if side.peer == LLAMA:
            context = str(capacity.length * capacity.sequences)
            caching = ["--cache-ram", "0", "--no-cache-prompt"]
            if capacity.prefix_gib:
                caching = [
                    "--cache-prompt",
                    "--cache-reuse",
                    CACHE_REUSE,
                    "--cache-ram",
                    str(capacity.prefix_gib << 10),
                ]
            return [str(self.llama_server), "-m", model, "--alias", LLAMA, "--host", "127.0.0.1", "--port", str(port),
                    "-t", threads, "-tb", threads, "-np", sequences, "-c", context, "-b", step, "-ub", step,
                    "--no-webui", *caching], "/health"  # fmt: skip
        python, script = self.peers.python(OPENVINO), str(FOLDER / "openvino_server.py")
        return [python, script, model, str(port), threads, sequences, step, str(capacity.prefix_gib)], "/v1/models"
