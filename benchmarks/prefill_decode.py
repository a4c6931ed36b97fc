"""What running answers feel of long prompts: one engine that cuts them into chunks, against prefill and decode apart.

    python benchmarks/prefill_decode.py ENGINE [--length 2000] [--json FILE]

Some answers run all the time, and a long prompt arrives again and again. Measured are the times between tokens of the
running answers, the time to the first token of the long prompts, and what both together make per second:

* one engine with all threads and chunks of 512 tokens, and once more with chunks of 64;
* an engine that prefills and one that decodes, in two processes with half of the threads each. The prefix of each long
  prompt travels, by TCP or through shared memory, and its answer comes from the engine that decodes.

It also measures the transfer alone, in bytes per second, beside the time that the prefill took. Needs an idle machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from machine import describe, wait_until_idle

from tensorwright import LLM, SamplingParams
from tensorwright.runtime.transfer.receiver import Fetched, Peer, fetch_prefix
from tensorwright.runtime.transfer.server import TransferServer
from tensorwright.runtime.transfer.store import PrefixStore
from tensorwright.runtime.transfer.tickets import Promise

TOKEN = "token-of-the-benchmark"
ANSWER = 8  # the tokens of a long prompt's answer
DECODED = 400  # the tokens of a running answer, after which the next begins


@dataclass
class Load:
    """decodes: the answers that run. prompts: the long prompts, of `length` tokens. pause: the seconds from the answer
    to a long prompt to the next one."""

    decodes: int
    prompts: int
    length: int
    pause: float


@dataclass
class Figures:
    """In seconds: the gaps between tokens of running answers, and the times to the first token of long prompts."""

    gaps: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    seconds: float = 0.0

    def summary(self) -> dict[str, float]:
        gaps, first = np.asarray(self.gaps) * 1e3, np.asarray(self.first)
        return {
            "itl_p50_ms": float(np.percentile(gaps, 50)),
            "itl_p99_ms": float(np.percentile(gaps, 99)),
            "itl_max_ms": float(gaps.max()),
            "ttft_p50_s": float(np.percentile(first, 50)),
            "ttft_max_s": float(first.max()),
            "decode_tokens_per_s": len(self.gaps) / self.seconds,
            "long_prompts_per_s": len(self.first) / self.seconds,
        }


class Running:
    """Answers that run all the time in an engine."""

    def __init__(self, llm: LLM, count: int, vocabulary: int, figures: Figures):
        self._llm, self._figures, self._vocabulary = llm, figures, vocabulary
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(seed,)) for seed in range(count)]
        for thread in self._threads:
            thread.start()

    def _run(self, seed: int) -> None:
        draw = np.random.default_rng(seed)
        params = SamplingParams(max_tokens=DECODED, temperature=0, ignore_eos=True, detokenize=False)
        while not self._over.is_set():
            prompt = draw.integers(0, self._vocabulary, 32).tolist()
            handle = self._llm.generate_async({"prompt_token_ids": prompt}, params)
            while not handle.done and not self._over.wait(0.05):
                pass
            handle.abort()
            self._figures.gaps += handle.so_far().metrics.inter_token_times

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()


def long_prompt(number: int, length: int, vocabulary: int) -> list[int]:
    return np.random.default_rng(1000 + number).integers(0, vocabulary, length).tolist()


def measure(llm: LLM, load: Load, before: Callable[[list[int]], object]) -> Figures:
    """Runs the load in the engine that decodes. before: brings the prefix of a long prompt, or does nothing."""
    vocabulary = llm.engine.vocab_size
    figures = Figures()
    params = SamplingParams(max_tokens=ANSWER, temperature=0, ignore_eos=True, detokenize=False)
    running = Running(llm, load.decodes, vocabulary, figures)
    time.sleep(1.0)
    begin = time.perf_counter()
    for number in range(load.prompts):
        prompt = long_prompt(number, load.length, vocabulary)
        start = time.perf_counter()
        before(prompt)
        brought = time.perf_counter() - start
        output = llm.generate({"prompt_token_ids": prompt}, params)
        figures.first.append(brought + output.metrics.time_to_first_token)
        time.sleep(load.pause)
    running.stop()
    figures.seconds = time.perf_counter() - begin
    return figures


def serve_prefills(path: str, threads: int, memory: str) -> None:
    """The process that prefills: it reads a prompt from each line of its input, and answers with a ticket."""
    with LLM(path, threads=threads, kv_cache_memory=memory, max_batch_size=4) as llm:
        store, server = PrefixStore(llm), TransferServer(TOKEN, timeout=60, idle=30)
        print(json.dumps({"port": server.port}), flush=True)
        params = SamplingParams(max_tokens=1, temperature=0, ignore_eos=True, detokenize=False)
        for line in sys.stdin:
            prompt = json.loads(line)
            start = time.perf_counter()
            llm.generate({"prompt_token_ids": prompt}, params)
            seconds = time.perf_counter() - start
            ticket = server.tickets.issue(Promise(store, np.asarray(prompt, np.int32), ""))
            print(json.dumps({"ticket": ticket, "seconds": seconds}), flush=True)
        server.close()


class Prefiller:
    """The process of `serve_prefills`, and the engine that fetches from it."""

    def __init__(self, process: subprocess.Popen[str], store: PrefixStore, shared: bool):
        assert process.stdout is not None
        self._process, self._store = process, store
        self._peer = Peer("127.0.0.1", self._read()["port"], TOKEN, 60, 30, shared)
        self.fetched: list[Fetched] = []
        self.prefill_seconds: list[float] = []

    def bring(self, prompt: list[int]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(prompt) + "\n")
        self._process.stdin.flush()
        answer = self._read()
        self.prefill_seconds.append(answer["seconds"])
        self.fetched.append(fetch_prefix(self._store, self._peer, answer["ticket"], ""))

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the process that prefills ended"
        return json.loads(line)

    def transfer(self) -> dict[str, float]:
        """Returns the medians of the transfers."""
        content = float(np.median([each.content for each in self.fetched]))
        seconds = float(np.median([each.seconds for each in self.fetched]))
        return {
            "mebibytes": content / 2**20,
            "transfer_ms": seconds * 1e3,
            "gigabytes_per_s": content / seconds / 1e9,
            "prefill_ms": float(np.median(self.prefill_seconds)) * 1e3,
        }


@contextmanager
def apart(path: str, threads: int, memory: str, shared: bool) -> Iterator[tuple[LLM, Prefiller]]:
    command = [sys.executable, __file__, path, "--serve-prefills", "--threads", str(threads), "--memory", memory]
    with ExitStack() as running:
        llm = running.enter_context(LLM(path, threads=threads, kv_cache_memory=memory, max_batch_size=16))
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        running.callback(process.wait)
        running.callback(process.kill)
        yield llm, Prefiller(process, PrefixStore(llm), shared)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine")
    parser.add_argument("--length", type=int, default=2000, help="tokens of a long prompt")
    parser.add_argument("--decodes", type=int, default=4, help="answers that run all the time")
    parser.add_argument("--prompts", type=int, default=6, help="long prompts in each way")
    parser.add_argument("--pause", type=float, default=0.5, help="seconds between long prompts")
    parser.add_argument("--memory", default="512MiB", help="the KV cache of each engine")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of all engines together")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--serve-prefills", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve_prefills:
        return serve_prefills(args.engine, args.threads, args.memory)
    load = Load(args.decodes, args.prompts, args.length, args.pause)
    busy = wait_until_idle(patience=5)
    print(json.dumps(describe()), f"busy before: {busy:.0%}")
    results: dict[str, Any] = {"machine": describe(), "busy": busy, "load": vars(load)}
    for chunk in (512, 64):
        whole = {"threads": args.threads, "kv_cache_memory": args.memory, "max_batch_size": 16}
        with LLM(args.engine, **whole, max_num_tokens=chunk) as llm:
            results[f"one engine, chunks of {chunk}"] = measure(llm, load, lambda prompt: None).summary()
    for shared in (False, True):
        way = "shared memory" if shared else "TCP"
        with apart(args.engine, max(1, args.threads // 2), args.memory, shared) as (llm, prefiller):
            figures = measure(llm, load, prefiller.bring)
            results[f"apart, {way}"] = figures.summary() | prefiller.transfer()
    for name, figures in results.items():
        if name not in ("machine", "busy", "load"):
            print(f"{name}: " + ", ".join(f"{key} {value:.4g}" for key, value in figures.items()))
    if args.json is not None:
        args.json.write_text(json.dumps(results, indent=2))
    return None


if __name__ == "__main__":
    main()
