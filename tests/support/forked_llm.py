"""Forks itself with an LLM in hand, and does in children what they may do with it. Prints what came of each as JSON.

A child ends as Python programs end, so that whatever runs at exit runs; an alarm kills one that hangs.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from tensorwright import LLM, GuidedDecodingParams, SamplingParams
from tensorwright.errors import TensorwrightError
from tensorwright.runtime.serving.server.app import create_app
from tensorwright.runtime.serving.server.options import ServerOptions

SECONDS = 120  # for a child, before it counts as hung
PARAMS = SamplingParams(max_tokens=4, temperature=0)


def text(llm: LLM) -> str:
    return llm.generate("def f", PARAMS).outputs[0].text


def ask_served(app: Any) -> str:
    """app: made before the fork, as servers that load first and fork then do."""
    import httpx

    async def ask() -> httpx.Response:
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as client,
        ):
            return await client.post("/v1/completions", json={"model": "pico", "prompt": "x", "max_tokens": 2})

    answer = asyncio.run(ask())
    return f"{answer.status_code} {answer.json()['error']['code']}"


async def first_of(handle: Any) -> None:
    async for _ in handle:
        return


async def awaited(make: Callable[[], Any]) -> Any:
    return await make()


def with_own(path: str) -> str:
    """A child's own engine works, and ends with it."""
    with LLM(path, kv_cache_memory="64MiB", threads=1) as own:
        return f"{len(own.generate('def f', PARAMS).outputs[0].token_ids)} tokens"


def acts(llm: LLM, handle: Any, path: str) -> list[dict[str, Callable[[], Any]]]:
    """For a child each."""
    app = create_app({"pico": llm}, ServerOptions())
    guided = SamplingParams(max_tokens=4, guided_decoding=GuidedDecodingParams(regex="a"))
    told = {
        "generate": lambda: text(llm),
        "generate_list": lambda: llm.generate(["a", "b"], PARAMS),
        "chat": lambda: llm.chat([{"role": "user", "content": "x"}], PARAMS, chat_template="{{ messages }}"),
        "generate_async": lambda: llm.generate_async("a", PARAMS),
        "await": lambda: asyncio.run(awaited(lambda: llm.generate_async("a", PARAMS))),
        "guided": lambda: llm.generate("a", guided),
        "stats": llm.get_stats,
        "profile": lambda: llm.profile(True),
        "abort": lambda: llm.abort(1),
        "load_adapter": lambda: llm.load_adapter("a", "nowhere"),
        "unload_adapter": lambda: llm.unload_adapter("a"),
        "observer": lambda: llm.add_observer(lambda output, error: None),
        "handle_result": lambda: handle.result(),
        "handle_done": lambda: handle.done,
        "handle_iterate": lambda: list(handle),
        "handle_await": lambda: asyncio.run(awaited(lambda: handle)),
        "handle_iterate_async": lambda: asyncio.run(first_of(handle)),
        "handle_abort": lambda: handle.abort(),
        "running": lambda: llm.running,
        "shutdown": llm.shutdown,
    }
    return [told, {"serve": lambda: ask_served(app)}, {"own": lambda: with_own(path)}]


def in_child(acts: dict[str, Callable[[], Any]]) -> dict[str, str]:
    """What each returned or raised; nothing of what a child did not come to."""
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        signal.alarm(SECONDS)
        for name, act in acts.items():
            try:
                told = {name: str(act())}
            except TensorwrightError as error:
                told = {name: type(error).__name__, "message": str(error)}
            os.write(write, json.dumps(told).encode() + b"\n")
        sys.exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = [json.loads(line) for line in pipe]
    _, status = os.waitpid(child, 0)
    told = {name: outcome for each in said for name, outcome in each.items()}
    return (
        told
        if status == 0
        else {name: f"{outcome}, but the child ended with {status}" for name, outcome in told.items()}
    )


def ends_at_once() -> str:
    process = multiprocessing.get_context("fork").Process(target=os.getpid)
    process.start()
    process.join(SECONDS)
    code = process.exitcode
    process.kill()
    return str(code)


def main() -> None:
    path = sys.argv[1]
    llm = LLM(path, kv_cache_memory="64MiB", threads=1, guided_vocabulary="eager")
    outcomes = {"before": text(llm)}
    waiting = llm.generate_async("def g", PARAMS)  # the children's copy of it never ends
    for together in acts(llm, waiting, path):
        outcomes |= in_child(together)
    outcomes["waiting"] = f"{len(waiting.result(SECONDS).outputs[0].token_ids)} tokens"
    outcomes["multiprocessing"] = ends_at_once()
    outcomes["parent"] = text(llm)
    held = [llm]
    del llm, together, waiting
    outcomes |= in_child({"delete": held.clear})
    held[0].shutdown()
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main()
