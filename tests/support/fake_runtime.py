"""Stand-ins for the C++ engine and for an engine directory, so that the Python side is tested alone.

The fake engine keeps the contract of `_runtime.Engine`: typed errors from submit, events from wait_events. Its
"model" says what the prompt said: token i of the output is token i of the prompt, starting over at its end; completion
c starts at token c. Where a guided completion's mask forbids what it would say, it says the lowest token allowed.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import xxhash
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tensorwright.errors import EngineStoppedError, InvalidRequestError, QueueFullError

EOS = 256
A, B, C = 10, 20, 30  # three letters of the byte-level alphabet

COUNTERS = (
    "waste_slots", "waiting", "evictions", "requests_finished", "requests_aborted", "requests_timed_out",
    "requests_failed", "steps", "steps_rolled_back", "preemptions", "generated_tokens", "prefill_tokens",
    "decode_tokens", "prefix_lookup_tokens", "prefix_hit_tokens", "sat_out", "steps_ahead", "invariant_checks",
    "invariant_violations", "state_slots", "used_state_slots", "state_snapshots", "state_snapshots_taken",
    "state_snapshots_evicted", "state_snapshot_hits", "forced_tokens", "drafts", "draft_tokens", "accepted_tokens",
    "draft_failures", "draft_seconds",
    "tier_memory_bytes", "tier_memory_blocks", "tier_memory_hits", "tier_memory_evicted", "tier_disk_bytes",
    "tier_disk_blocks", "tier_disk_hits", "tier_disk_evicted", "tier_disk_read_bytes", "tier_disk_written_bytes",
    "tier_disk_failed_writes", "tier_disk_dropped", "tier_lost", "prefix_fetches", "prefix_fetches_failed",
    "prefix_fetches_passed_over", "prefix_fetch_tokens", "prefix_fetch_seconds",
    "pinned_prefixes", "pinned_bytes", "pinned_room", "resumed_kept_tokens", "resumed_computed_tokens",
    "resumed_fetches", "resumed_passed_over",
    "requests_late", "steps_over_itl_goal", "prefill_share", "paced_places",
)  # fmt: skip
"""Statistics of the real engine that this one leaves at 0."""


@dataclass
class FakeEvent:
    request_id: int
    completion: int = 0
    tokens: list[int] = field(default_factory=list)
    logprobs: list[list[tuple[int, float, int]]] = field(default_factory=list)
    prompt_logprobs: list[list[tuple[int, float, int]]] = field(default_factory=list)
    finish: str = ""
    stop_token: int = -1
    error_type: str = ""
    error: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    cumulative_logprob: float = 0.0
    pooled: None = None
    queue_s: float = 0.25
    first_token_s: float = 0.5


class FakeEngine:
    """One token per running request and step; a step per wait_events. `gate` cleared: no steps are made.
    `budget`: steps left to make, None for no limit.
    """

    def __init__(self, max_queue: int = 1000):
        self.gate = threading.Event()
        self.gate.set()
        self.submitted: dict[int, Any] = {}
        self.budget: int | None = None
        self.steps = self.violations = 0  # as its stats have them
        self.blocks = 100
        self.windows = [0]  # of the cache groups
        self.tokens_per_event = 1
        self.obeys = True  # what masks say
        self.death: Exception | None = None
        self._max_queue = max_queue
        self._alive: dict[tuple[int, int], tuple[list[int], Any, int]] = {}  # by request and completion
        self.masks: dict[tuple[int, int, int], np.ndarray] = {}  # those set, by request, completion and token number
        self._events: list[FakeEvent] = []
        self._lock = threading.Lock()
        self.stopped = False
        self.cause = ""
        self.called_here = False

    def submit(self, request_id: int, prompt: list[int], sampling: Any, first_mask: Any = None) -> None:
        with self._lock:
            if self.stopped:
                raise EngineStoppedError("stopped")
            if len({alive for alive, _ in self._alive}) >= self._max_queue:
                raise QueueFullError(f"{self._max_queue} requests wait already")
            if (first_mask is not None) != getattr(sampling, "guided", False):
                raise InvalidRequestError("a guided request, and no other, brings the mask of its first token")
            self.submitted[request_id] = sampling
            for completion in range(sampling.n):
                if first_mask is not None:
                    self.masks[request_id, completion, 0] = np.array(first_mask, np.uint32)
                self._alive[request_id, completion] = (list(prompt), sampling, completion)
            if sampling.prompt_logprobs >= 0:  # in two events, as two chunks of the prompt would tell of them
                told = [[(token, -0.5 * at, 1)] for at, token in enumerate(prompt)][1:]
                self._events += [FakeEvent(request_id, prompt_logprobs=part) for part in (told[:1], told[1:])]

    def take_notices(self) -> list[str]:
        return []

    def set_mask(self, request_id: int, completion: int, generated: int, bits: Any) -> bool:
        with self._lock:
            if (request_id, completion) not in self._alive:
                return False
            self.masks[request_id, completion, generated] = np.array(bits, np.uint32)
            return True

    def abort(self, request_id: int, completion: int = -1) -> bool:
        with self._lock:
            return self._end(request_id, completion, finish="abort")

    def _end(self, request_id: int, completion: int = -1, **fields: str) -> bool:
        ended = [name for name in self._alive if name[0] == request_id and completion in (-1, name[1])]
        for name in ended:
            del self._alive[name]
            self._events.append(FakeEvent(*name, **fields))  # type: ignore[arg-type]
        return bool(ended)

    def wait_events(self, timeout_s: float) -> list[FakeEvent]:
        deadline = time.monotonic() + timeout_s
        while True:
            with self._lock:
                if self.death is not None:
                    raise self.death
                if self.gate.is_set() and self._alive and self.budget != 0:
                    self.budget = None if self.budget is None else self.budget - 1
                    for name in list(self._alive):
                        self._steps(name)
                events, self._events = self._events, []
            if events or time.monotonic() >= deadline or self.stopped:
                return events
            time.sleep(0.002)

    def stats(self) -> dict[str, Any]:
        blocks = {"total_blocks": self.blocks, "free_blocks": self.blocks, "cached_blocks": 0, "used_blocks": 0}
        shape = {"chunked": False, "sink_tokens": 0, "kv_budget": 0}
        groups = [{"window": window, **shape, **blocks} for window in self.windows]
        counts = {"steps": self.steps, "invariant_violations": self.violations, "running": len(self._alive)}
        return {**dict.fromkeys(COUNTERS, 0), **blocks, **counts, "block_size": 32, "groups": groups}

    def shutdown(self, drain: bool, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while drain and self._alive and time.monotonic() < deadline:
            time.sleep(0.002)
        for request_id, _ in list(self._alive):
            self.abort(request_id)
        self.stopped = True

    def fail_request(self, request_id: int, error_type: str, message: str) -> None:
        with self._lock:
            self._end(request_id, finish="error", error_type=error_type, error=message)

    def time_out(self, request_id: int) -> None:
        with self._lock:
            self._end(request_id, finish="timeout")

    def _steps(self, name: tuple[int, int]) -> None:
        """As the engine does when nobody fetches: tokens of several steps in one event."""
        first = len(self._events)
        for _ in range(self.tokens_per_event):
            if name in self._alive:
                self._step(name)
        told, self._events[first:] = self._events[first:], []
        whole = [event for event in told if event.completion == name[1]]
        self._events += [event for event in told if event.completion != name[1]]  # they ended with it
        if not whole:
            return  # it waits for its mask
        whole[-1].tokens = [token for event in whole for token in event.tokens]
        whole[-1].logprobs = [table for event in whole for table in event.logprobs]
        self._events.append(whole[-1])

    def _step(self, name: tuple[int, int]) -> None:
        prompt, sampling, made = self._alive[name]
        token = prompt[made % len(prompt)]
        if getattr(sampling, "guided", False):
            mask = self.masks.get((*name, made - name[1]))
            if mask is None:
                return
            allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
            if not allowed.size:
                self._end(name[0], finish="error", error_type="InvalidRequestError", error="the mask leaves no token")
                return
            token = token if token in allowed or not self.obeys else int(allowed[0])
        stops = list(sampling.stop_token_ids) + ([] if sampling.ignore_eos else sampling.eos_token_ids)
        finish = "stop" if token in stops else "length" if made + 1 - name[1] == sampling.max_tokens else ""
        event = FakeEvent(*name, tokens=[token], finish=finish, stop_token=token if finish == "stop" else -1)
        if sampling.logprobs >= 0:
            others = [(other, -2.0 - other, other + 2) for other in range(sampling.logprobs)]
            event.logprobs = [[(token, -1.5, 1), *others]]
        self._events.append(event)
        self._alive[name] = (prompt, sampling, made + 1)
        if finish:
            del self._alive[name]


def fake_module() -> Any:
    """What native.load_module gives, with everything but Engine."""
    choices = [("matmul", "matmul_scalar", ["matmul_avx512: needs AVX-512"])]
    return SimpleNamespace(
        EngineOptions=SimpleNamespace,
        Sampling=SimpleNamespace,
        explain_dispatch=lambda: choices,
        topology=lambda: {"nodes": 1, "cores": 1},
    )


def byte_tokenizer() -> Tokenizer:
    """Ids 0..255 are the bytes in the order of the byte-level alphabet, 256 is <end>."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    return tokenizer


def engine_config(**changes: Any) -> dict[str, Any]:
    config = {
        "format": "tensorwright-engine",
        "format_version": 1,
        "tensorwright_version": "0.1.0",
        "target": "cpu",
        "model": {
            "model_type": "llama", "vocab_size": 257, "hidden_size": 8, "layers": 2, "heads": 2, "kv_heads": 1,
            "head_dim": 4, "bos_token_id": EOS, "eos_token_ids": [EOS],
        },
        "dtype": "float32",
        "limits": {"max_seq_len": 128, "block_size": 32, "kv_block_bytes": 2048},
        "build_options": {},
        "passes": {"fuse_qkv": 2},
        "accuracy": None,
        "quantization": None,
        "source": {"hash": "0", "files": {}},
        "sizes": {"cpu/weights.bin": 64},
    }  # fmt: skip
    return {**config, **changes}


def write_engine(
    path: Path, config: dict[str, Any] | None = None, tokenizer: bool = True, more: dict[str, str] | None = None
) -> Path:
    """An engine directory that the reader accepts; its plan and weights are only bytes. more: further files."""
    files = {
        "config.json": json.dumps(config or engine_config()).encode(),
        "graph.txt": b"graph fake {\n}\n",
        "cpu/plan.bin": b"plan",
        "cpu/weights.bin": bytes(64),
        "generation_config.json": b"{}",
    }
    files |= {name: text.encode() for name, text in (more or {}).items()}
    if tokenizer:
        files["tokenizer.json"] = byte_tokenizer().to_str().encode()
    for name, data in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    write_checksums(path, list(files))
    return path


def write_checksums(path: Path, names: list[str]) -> None:
    datas = {name: (path / name).read_bytes() for name in names}
    body = "".join(f"{xxhash.xxh3_128_hexdigest(datas[n])}  {len(datas[n])}  {n}\n" for n in sorted(names))
    last = f"{xxhash.xxh3_128_hexdigest(body.encode())}  {len(body.encode())}  .\n"
    (path / "checksums.txt").write_text(body + last)


def ids(*tokens: int) -> dict[str, Any]:
    return {"prompt_token_ids": list(tokens)}
