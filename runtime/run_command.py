"""`tensorwright run`: prompts in, text out as it comes."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from tensorwright.runtime.async_requests import RequestHandle
from tensorwright.runtime.engine_cache import cache_root
from tensorwright.runtime.llm import LLM, is_model
from tensorwright.runtime.model_cache import is_cached
from tensorwright.runtime.outputs import RequestOutput
from tensorwright.runtime.sampling_params import SamplingParams


def run_prompts(
    engine: str,
    prompts: tuple[str, ...],
    *,
    max_tokens: int,
    temperature: float,
    top_k: int,
    top_p: float,
    seed: int | None,
    ignore_eos: bool,
    stream: bool,
    echo: bool,
    as_json: bool,
    stats: bool,
    threads: int | None,
    kv_cache_memory: str | None,
) -> None:
    """All prompts run at once; their texts are printed one after the other, in order. See cli.run for the options."""
    params = SamplingParams(
        max_tokens=max_tokens, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed, ignore_eos=ignore_eos
    )
    texts = [sys.stdin.read() if prompt == "-" else prompt for prompt in prompts]
    _tell_of_build(Path(os.path.expanduser(engine)))
    with LLM(engine, threads=threads, kv_cache_memory=kv_cache_memory) as llm:
        begin = time.perf_counter()
        handles = [llm.generate_async(text, params) for text in texts]
        outputs = []
        for text, handle in zip(texts, handles, strict=True):
            if as_json:
                outputs.append(handle.result())
                click.echo(json.dumps(_as_dict(outputs[-1])))
                continue
            if len(texts) > 1:
                click.echo(f"==> {text!r} <==")
            if echo:
                click.echo(text, nl=False)
            outputs.append(_print_stream(handle) if stream else _print_whole(handle))
        if stats:
            _print_stats(outputs, time.perf_counter() - begin)


def _tell_of_build(path: Path) -> None:
    """A first use of a model directory takes minutes; silence would look like a fault."""
    if is_model(path) and not is_cached(path, "auto"):
        click.echo(f"building the engine of {path} into {cache_root()}, once; this may take minutes", err=True)


def _print_stream(handle: RequestHandle) -> RequestOutput:
    shown = 0
    for output in handle:
        text = output.outputs[0].text
        click.echo(text[shown:], nl=False)  # click flushes
        shown = len(text)
    click.echo()
    return output


def _print_whole(handle: RequestHandle) -> RequestOutput:
    output = handle.result()
    click.echo(output.outputs[0].text)
    return output


def _as_dict(output: RequestOutput) -> dict[str, Any]:
    """For --json: the whole output, with its one completion's text and tokens where they are easy to reach."""
    completion = output.outputs[0]
    return {
        "prompt": output.prompt,
        "text": completion.text,
        "token_ids": completion.token_ids,
        "prompt_tokens": len(output.prompt_token_ids),
        "finish_reason": completion.finish_reason,
        "stop_reason": completion.stop_reason,
        "metrics": asdict(output.metrics),
    }


def _print_stats(outputs: list[RequestOutput], seconds: float) -> None:
    prompt = sum(len(output.prompt_token_ids) for output in outputs)
    made = sum(len(output.outputs[0].token_ids) for output in outputs)
    line = f"{prompt} prompt tokens, {made} generated in {seconds:.2f} s: {made / seconds:.1f} tokens/s"
    first = [t for output in outputs if (t := output.metrics.time_to_first_token) is not None]
    each = [t for output in outputs if (t := output.metrics.time_per_output_token) is not None]
    if first:
        line += f"; first token after {max(first) * 1e3:.0f} ms"
    if each:
        line += f", then one every {sum(each) / len(each) * 1e3:.1f} ms"
    click.echo(line, err=True)
