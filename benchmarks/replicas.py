"""What replicas on Ray Serve cost, and what becomes of requests when one is killed.

    python benchmarks/replicas.py ENGINE --out out/replicas

Hop: the plain server and `tensorwright serve --ray` with one replica, in turns, the other one stopped meanwhile; at
batch 1 and 8, so many clients stream one completion after the other. The figures are the time to the first token and
the tokens per second of all clients. Kill: a server with two replicas and more requests than places; one replica is
killed while they run. It counts the requests that ended well, were sent again, went on elsewhere, or were
lost, with --resume and without. Everything runs on this machine. The run refuses a machine that is not idle
(--force goes on, and says so in the report). Writes OUT.json and OUT.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
sys.path[:0] = [str(FOLDER / "peers"), str(FOLDER)]

import httpx  # noqa: E402
from idle import look  # noqa: E402
from machine import describe  # noqa: E402

START_SECONDS = 300
SMALL = ("--threads", "1", "--kv-cache-memory", "64MiB")
BATCHES = (1, 8)


@contextmanager
def serving(engine: Path, *options: str) -> Iterator[str]:
    """Runs the server with these options. Gives its URL."""
    command = [sys.executable, "-m", "tensorwright.runtime.commands.cli", "serve", f"model={engine}", "--port", "0"]
    process = subprocess.Popen([*command, *SMALL, "--log-level", "error", *options], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        url = re.fullmatch(r"serving model at (\S+)\n", process.stdout.readline())
        assert url is not None, "the server did not start"
        yield url[1]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(START_SECONDS)


async def stream(client: httpx.AsyncClient, prompt: list[int], tokens: int, seed: int) -> dict[str, Any]:
    """Streams one completion. Returns its time to the first token, its number of chunks with text, and how it ended."""
    body = {
        "prompt": prompt, "max_tokens": tokens, "seed": seed, "stream": True, "ignore_eos": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    begin, first, count, end = time.perf_counter(), None, 0, "cut off"
    try:
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            if answer.status_code != 200:
                return {"ttft": None, "tokens": 0, "end": str(answer.status_code)}
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line[6:])
                    if "error" in event:
                        return {"ttft": first, "tokens": count, "end": event["error"]["code"]}
                    if event["choices"] and first is None:
                        first = time.perf_counter() - begin
                    if event.get("usage"):
                        count = event["usage"]["completion_tokens"]
                elif line == "data: [DONE]":
                    end = "done"
    except httpx.HTTPError as error:
        end = type(error).__name__
    return {"ttft": first, "tokens": count, "end": end}


async def hop(url: str, batch: int, requests: int, tokens: int) -> dict[str, float]:
    """Figures of `batch` clients that stream `requests` completions each, one after the other."""
    async with httpx.AsyncClient(base_url=url, timeout=START_SECONDS, trust_env=False) as client:

        async def one_client(number: int) -> list[dict[str, Any]]:
            prompts = ([10 + number, 20 + each, 30] * 8 for each in range(requests))
            return [await stream(client, prompt, tokens, number) for prompt in prompts]

        await asyncio.gather(*(one_client(number) for number in range(batch)))  # to warm up
        begin = time.perf_counter()
        answers = [each for some in await asyncio.gather(*map(one_client, range(batch))) for each in some]
        seconds = time.perf_counter() - begin
    assert all(answer["end"] == "done" for answer in answers), answers
    return {
        "ttft_ms": 1e3 * statistics.median(answer["ttft"] for answer in answers),
        "tokens_per_second": sum(answer["tokens"] for answer in answers) / seconds,
    }


def measure_hop(engine: Path, rounds: int, requests: int, tokens: int) -> list[dict[str, Any]]:
    rows = []
    for turn in range(rounds):
        for side, options in (("plain", ()), ("ray", ("--ray",))):
            with serving(engine, *options) as url:
                for batch in BATCHES:
                    rows.append({"side": side, "batch": batch, "round": turn})
                    rows[-1] |= asyncio.run(hop(url, batch, requests, tokens))
                    print(rows[-1], flush=True)
    return rows


def replica_processes() -> list[int]:
    """The processes of this benchmark's replicas."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                title = (folder / "cmdline").read_bytes()
            except OSError:
                continue  # It has just ended.
            if title.startswith(b"ray::ServeReplica:killed-model:engine"):
                found.append(int(folder.name))
    return found


async def kill_under_load(url: str, requests: int, tokens: int) -> dict[str, Any]:
    """Kills one of two replicas when a tenth of the requests have ended. Returns counts of how requests ended, and what
    the server says of them."""
    async with httpx.AsyncClient(base_url=url, timeout=START_SECONDS, trust_env=False) as client:
        ended = 0

        async def one(number: int) -> dict[str, Any]:
            nonlocal ended
            answer = await stream(client, [10 + number, 20, 30] * 8, tokens, number)
            ended += 1
            return answer

        sent = [asyncio.ensure_future(one(number)) for number in range(requests)]
        while ended < requests // 10:
            await asyncio.sleep(0.005)
        under_way = requests - ended
        os.kill(replica_processes()[0], signal.SIGKILL)
        begin = time.perf_counter()
        answers = await asyncio.gather(*sent)
        seconds = time.perf_counter() - begin
        text = (await client.get("/metrics")).text
    ends = [answer["end"] for answer in answers]
    told = {
        name: int(float(re.search(rf"^tensorwright_replica_requests_{name}_total{{.*}} (\S+)", text, re.M)[1]))
        for name in ("restarted", "resumed", "lost")
    }
    return {
        "requests": requests, "under_way": under_way, "ends": {end: ends.count(end) for end in sorted(set(ends))},
        "whole": sum(answer["tokens"] == tokens for answer in answers), "seconds_after_the_kill": seconds, **told,
    }  # fmt: skip


def measure_kills(engine: Path, requests: int, tokens: int) -> list[dict[str, Any]]:
    rows = []
    for resume in (False, True):
        options = (
            "--ray", "--ray-app", "killed", "--replicas", "2", "--max-batch-size", "4", "--max-queue-size", "1024",
        )  # fmt: skip
        with serving(engine, *options, *(["--resume"] if resume else [])) as url:
            rows.append({"resume": resume, **asyncio.run(kill_under_load(url, requests, tokens))})
            print(rows[-1], flush=True)
    return rows


def page(report: dict[str, Any]) -> str:
    machine = ", ".join(f"{name} {value}" for name, value in report["machine"].items())
    lines = [f"{machine}. Before the run: {report['before']}.", ""]
    if not report["idle"]:
        lines += ["The machine was not idle, so times and rates say little; the counts below do not depend on it.", ""]
    lines += ["| | batch | TTFT, ms | tokens per second |", "|---|---|---|---|"]
    for side in ("plain", "ray"):
        for batch in BATCHES:
            rows = [row for row in report["hop"] if (row["side"], row["batch"]) == (side, batch)]
            ttft, rate = (statistics.median(row[name] for row in rows) for name in ("ttft_ms", "tokens_per_second"))
            lines.append(f"| {side} | {batch} | {ttft:.1f} | {rate:.0f} |")
    lines += ["", "| resume | requests | under way | whole | restarted | resumed | lost | ends | seconds after |"]
    lines += ["|---" * 9 + "|"]
    for row in report["kills"]:
        cells = ["resume", "requests", "under_way", "whole", "restarted", "resumed", "lost", "ends"]
        lines.append("| " + " | ".join(str(row[cell]) for cell in cells) + f" | {row['seconds_after_the_kill']:.1f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", type=Path)
    parser.add_argument("--out", type=Path, default=Path("out/replicas"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=16, help="Completions of each client.")
    parser.add_argument("--tokens", type=int, default=64, help="Tokens of each completion.")
    parser.add_argument("--load", type=int, default=60, help="Requests of the kill under load.")
    parser.add_argument("--load-tokens", type=int, default=200, help="Tokens of each of these.")
    parser.add_argument("--force", action="store_true", help="Measure on a machine that is not idle.")
    given = parser.parse_args()
    seen = look()
    if not seen.idle and not given.force:
        sys.exit(f"the machine is not idle: {seen}; --force measures all the same")
    report = {
        "machine": describe(),
        "idle": seen.idle,
        "before": str(seen),
        "hop": measure_hop(given.engine, given.rounds, given.requests, given.tokens),
        "kills": measure_kills(given.engine, given.load, given.load_tokens),
    }
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.with_suffix(".json").write_text(json.dumps(report, indent=2), encoding="utf-8")
    given.out.with_suffix(".md").write_text(page(report), encoding="utf-8")
    print(page(report))


if __name__ == "__main__":
    main()
