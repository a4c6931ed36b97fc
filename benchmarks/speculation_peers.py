"""Speculation in this project's server next to the modes of llama.cpp's server, on the same target and draft.

    python benchmarks/speculation_peers.py models/pico models/pico-draft
    python benchmarks/speculation_peers.py models/pico models/pico-draft --heads models/pico-eagle3 --rounds 5

Both serve over HTTP, and the same client streams greedy answers of 128 tokens from both. Texts are those of
benchmarks/speculation.py, sent as token ids. All servers take turns, A B C A B C; whoever is not asked is stopped. The
best round of each counts, since other programs only slow a round down, but for a first one that warms up. Tokens of a
second are counted from the last sequence's first token on. llama.cpp's files are F16, and this project's engines have
the checkpoint's own type.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
sys.path[:0] = [str(FOLDER / "servers"), str(FOLDER / "peers"), str(FOLDER)]

import httpx  # noqa: E402
import idle  # noqa: E402
import llama_build  # noqa: E402
from environments import OURS, Cache, Side, run_logged  # noqa: E402
from machine import describe  # noqa: E402
from server_process import ServerProcess, free_port  # noqa: E402
from server_sides import LLAMA  # noqa: E402
from speculation import PLAIN, TOKENS, prompts  # noqa: E402

from tensorwright.runtime.text.tokenizer import Tokenizer  # noqa: E402

TEXTS = ("code", "repetition")
LLAMA_FORMS = {
    PLAIN: [],
    "draft": ["--spec-type", "draft-simple"],
    "draft of 1": ["--spec-type", "draft-simple", "--spec-draft-n-max", "1", "--spec-draft-p-min", "0"],
    "ngram-simple": ["--spec-type", "ngram-simple", "--spec-draft-n-max", "64"],
    "ngram-map-k": ["--spec-type", "ngram-map-k", "--spec-draft-n-max", "64"],
    "ngram-mod": ["--spec-type", "ngram-mod"],
    "ngram-cache": ["--spec-type", "ngram-cache"],
}
"""The modes that need no files but the pair's, with the values that its documentation shows, else its defaults."""


@dataclass
class Contest:
    """One server in one form. rates: tokens per second by (text, batch), best of the rounds."""

    name: str
    server: ServerProcess
    rates: dict[tuple[str, int], float] = field(default_factory=dict)
    answers: dict[tuple[str, int], list[str]] = field(default_factory=dict)


async def answer(client: httpx.AsyncClient, ours: bool, ids: list[int]) -> tuple[float, int, str]:
    """Returns (when the first token came, how many came, the text). Both servers stream lines of `data: {...}`."""
    body: dict[str, Any] = {"prompt": ids, "temperature": 0.0, "seed": 1, "ignore_eos": True, "stream": True}
    if ours:
        wanted = {"model": OURS, "max_tokens": TOKENS, "stream_options": {"include_usage": True}}
    else:
        wanted = {"n_predict": TOKENS, "return_tokens": True, "cache_prompt": False}
    path = "/v1/completions" if ours else "/completion"
    first, count, text = None, 0, ""
    async with client.stream("POST", path, json=body | wanted) as response:
        if response.status_code != 200:
            raise SystemExit(f"error: {path} answered {response.status_code}: {(await response.aread()).decode()}")
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            first = first or time.perf_counter()
            message = json.loads(line.removeprefix("data: "))
            if ours:
                text += "".join(choice["text"] for choice in message["choices"])
                count = (message.get("usage") or {}).get("completion_tokens", count)
            else:
                text += message["content"]
                count += len(message.get("tokens") or [])
    assert first is not None
    return first, count, text


async def measure(contest: Contest, texts: list[list[int]]) -> tuple[float, list[str]]:
    """Returns (tokens per second from the last sequence's first token on, the answers)."""
    async with httpx.AsyncClient(base_url=contest.server.url, timeout=600, trust_env=False) as client:
        ours = contest.name.startswith(OURS)
        answers = await asyncio.gather(*(answer(client, ours, ids) for ids in texts))
        seconds = time.perf_counter() - max(first for first, _, _ in answers)
    if any(count != TOKENS for _, count, _ in answers):
        raise SystemExit(f"error: {contest.name} made {[count for _, count, _ in answers]} tokens instead of {TOKENS}")
    return len(texts) * (TOKENS - 1) / seconds, [text for _, _, text in answers]


def start_ours(form: str, engine: Path, draft: Path, log: Path, threads: int) -> ServerProcess:
    port = free_port()
    command = [sys.executable, "-P", "-m", "tensorwright.runtime.commands.cli", "serve", f"{OURS}={engine}",
               "--port", str(port), "--log-level", "warning", "--threads", str(threads),
               "--no-prefix-caching"]  # fmt: skip
    if form != PLAIN:
        command += ["--speculative", f"draft,model={draft}" if form == "draft" else form]
    return ServerProcess(command, port, "/ready", log, {})


def start_llama(form: str, server: Path, target: Path, draft: Path, log: Path, threads: int) -> ServerProcess:
    port = free_port()
    command = [str(server), "-m", str(target), "--host", "127.0.0.1", "--port", str(port), "-t", str(threads),
               "-tb", str(threads), "-np", "4", "-c", "8192", "--no-webui", "--cache-ram", "0",
               "--no-cache-prompt", *LLAMA_FORMS[form]]  # fmt: skip
    if form.startswith("draft"):
        command += ["-md", str(draft)]
    return ServerProcess(command, port, "/health", log, {})


def gguf_files(cache: Cache, own: Path, models: list[Path]) -> list[Path]:
    """Returns a GGUF file of each checkpoint, with a vocabulary of made-up words: prompts are sent as ids."""
    made = []
    for model in models:
        plain, out = own / f"{model.name}-plain.gguf", own / f"{model.name}.gguf"
        if not out.exists():
            code = f"import gguf_file, pathlib; gguf_file.write(*map(pathlib.Path, {[str(model), str(plain)]!r}))"
            environment = {"PYTHONPATH": str(FOLDER / "peers"), "PYTHONSAFEPATH": ""}
            python = cache.python(LLAMA)
            run_logged([python, "-c", code], cache.logs / f"convert-{model.name}.log", environment)
            script = str(FOLDER / "servers" / "gguf_vocabulary.py")
            run_logged([python, script, str(plain), str(out)], cache.logs / f"vocabulary-{model.name}.log")
            plain.unlink()
        made.append(out)
    return made


def build_engines(own: Path, target: Path, draft: Path, heads: Path | None) -> tuple[Path, Path]:
    engine, small = own / "engine", own / "draft"
    for model, out, options in ((target, engine, ["--heads", str(heads)] if heads else []), (draft, small, [])):
        subprocess.run(
            [sys.executable, "-P", "-m", "tensorwright.builder.cli", str(model), str(out), "--force", *options],
            check=True,
            stdout=subprocess.DEVNULL,
        )
    return engine, small


def page(contests: list[Contest], cases: list[tuple[str, int]]) -> str:
    plain = {name: next(c for c in contests if c.name == f"{name} {PLAIN}") for name in (OURS, LLAMA)}
    head = " | ".join(f"{text}, batch {batch}" for text, batch in cases)
    lines = [f"| tokens per second | {head} |", "|---|" + "---|" * len(cases)]
    for contest in contests:
        reference = plain[contest.name.split()[0]]
        cells = [f"{contest.rates[case]:.0f} ({contest.rates[case] / reference.rates[case]:.2f})" for case in cases]
        lines.append(f"| {contest.name} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", "In brackets the ratio to the same server without speculation."])


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path, help="the checkpoint of the target model")
    parser.add_argument("draft", type=Path, help="the checkpoint of the draft model, with the same tokenizer")
    parser.add_argument("--heads", type=Path, help="heads of the target: this project's server is also run with them")
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 4], help="sequences at once, at most 4")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "tensorwright-peers")
    parser.add_argument("--servers", type=Path, default=Path.home() / ".cache" / "tensorwright-servers")
    parser.add_argument("--llama-server", type=Path, help="a llama-server; default: built from the peer's package")
    parser.add_argument("--out", type=Path, default=Path("out/speculation-peers"), help="without suffix")
    args = parser.parse_args()
    if not all(1 <= batch <= 4 for batch in args.batch):
        parser.error("--batch must be 1 to 4: the servers are started for four sequences")
    return args


def run(args: argparse.Namespace, contests: list[Contest]) -> list[tuple[str, int]]:
    file = args.target / "tokenizer.json"
    tokenizer = Tokenizer.from_bytes(file.read_bytes(), file)
    cases = [(text, batch) for text in TEXTS for batch in args.batch]
    ids = {text: [tokenizer.encode(prompt) for prompt in prompts(text, 0)] for text in TEXTS}
    for measured in range(-1, args.rounds):
        print(f"round {measured + 1}: {idle.wait_until_idle(120.0)}", flush=True)
        for text, batch in cases:
            for contest in contests:
                contest.server.resume()
                rate, answers = asyncio.run(measure(contest, ids[text][:batch]))
                contest.server.pause()
                best = contest.rates.get((text, batch), 0.0)
                contest.rates[text, batch] = max(best, rate if measured >= 0 else 0.0)
                contest.answers[text, batch] = answers
    reference = next(c for c in contests if c.name == f"{OURS} {PLAIN}")
    for contest in contests:
        if contest.name.startswith(OURS) and contest.answers != reference.answers:
            raise SystemExit(f"error: the answers of {contest.name} differ from those without speculation")
    return cases


def main() -> None:
    args = options()
    cache, own = Cache(args.cache.expanduser().resolve(), args.target.name), args.servers.expanduser().resolve()
    models = own / "speculation" / args.target.name
    models.mkdir(parents=True, exist_ok=True)
    python = cache.python(LLAMA)
    llama_server = args.llama_server or llama_build.build(Cache(own, args.target.name), python)
    target, draft = gguf_files(cache, models, [args.target.resolve(), args.draft.resolve()])
    engine, small = build_engines(models, args.target, args.draft, args.heads)
    contests: list[Contest] = []
    try:
        for form in [PLAIN, "draft", "ngram", "suffix", *(["heads"] if args.heads else [])]:
            log = cache.logs / f"speculation-{OURS}-{form}.log"
            contests.append(Contest(f"{OURS} {form}", start_ours(form, engine, small, log, args.threads)))
        for form in LLAMA_FORMS:
            log = cache.logs / f"speculation-{Side(LLAMA, form).file_name}.log"
            process = start_llama(form, llama_server, target, draft, log, args.threads)
            contests.append(Contest(f"{LLAMA} {form}", process))
        for contest in contests:
            contest.server.wait_until_ready(120)
            contest.server.pause()
        cases = run(args, contests)
    finally:
        for contest in contests:
            contest.server.close()
    text = page(contests, cases)
    print("\n" + text)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    rates = {c.name: {f"{text}, batch {batch}": c.rates[text, batch] for text, batch in cases} for c in contests}
    report = {"machine": describe(), "rounds": args.rounds, "rates": rates}
    args.out.with_suffix(".json").write_text(json.dumps(report, indent=2))
    args.out.with_suffix(".md").write_text(text + "\n")


if __name__ == "__main__":
    main()
