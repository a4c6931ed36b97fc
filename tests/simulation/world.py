"""A served engine with clients of all kinds, their behaviour and the faults drawn from one seed, and what must hold.

It has more than 500 lines because all clients, and what must hold of them, read the books of one world.
"""

from __future__ import annotations

import asyncio
import gc
import json
import queue
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from simulation.baton import Simulation
from simulation.engine import BLOCK, LETTERS, LONGEST, SimulatedExecutor, SteppedEngine, continuation, letter
from simulation.grammar import ALLOWED, Vocabulary
from simulation.loop import SimulatedLoop
from simulation.stand_ins import Pool, SimulatedQueues, SimulatedThreading, SimulatedTime
from support.fake_runtime import engine_config, write_engine
from tensorwright import LLM, GuidedDecodingParams, SamplingParams
from tensorwright.errors import EngineStoppedError, OutOfMemoryError, QueueFullError, RequestAbortedError
from tensorwright.runtime.engine import native
from tensorwright.runtime.requests import prompts
from tensorwright.runtime.serving.server.app import create_app

PACKAGE = "tensorwright.runtime"
KINDS = ("wait", "read", "poll", "batch", "await", "read_async", "http")
PATIENCE = 300.0  # seconds of the simulation in which everything must have ended


class Panic(BaseException):
    """As a library written in Rust raises it."""


@dataclass(frozen=True)
class Swarm:
    """Which kinds of trouble a run has, and how much."""

    reorder: float
    by_priority: bool
    at_lines: float
    lines_of: str  # file, or a part of its name
    blocks: int
    batch: int
    queue: int
    prefix_cache: bool
    clients: int
    kinds: tuple[str, ...]  # of clients
    faults: float  # of steps
    panics: float  # of decoded texts
    observer_fails: bool
    collects: float  # the garbage collector, at lines
    ending: str  # after all clients, or amid them: abort, drain, drop

    @classmethod
    def draw(cls, random: Any) -> Swarm:
        return cls(
            reorder=random.choice((0.05, 0.5, 1.0)),
            by_priority=random.random() < 0.5,
            at_lines=random.choice((0.0, 0.0, 0.0, 0.01, 0.1)),
            lines_of=random.choice(("", "request_handle", "engine_client", "server/")),
            blocks=random.choice((20, 24, 60)),
            batch=random.choice((1, 2, 4)),
            queue=random.choice((1, 2, 4, 20)),
            prefix_cache=random.random() < 0.7,
            clients=random.randint(1, 8),
            kinds=tuple(random.sample(KINDS, random.choice((1, 3, len(KINDS))))),
            faults=random.choice((0.0, 0.0, 0.1, 0.5)),
            panics=random.choice((0.0, 0.0, 0.0, 0.02)),
            observer_fails=random.random() < 0.2,
            collects=random.choice((0.0, 0.0, 0.005, 0.05)),
            ending=random.choice(("after", "after", "abort", "drain", "drop")),
        )


def write_toy_engine(path: Path) -> Path:
    limits = {"max_seq_len": LONGEST, "block_size": BLOCK, "kv_block_bytes": 1}
    return write_engine(path, engine_config(limits=limits))


class World:
    """One run. changes: to the swarm that the seed draws. `trouble`: what happened that may not."""

    def __init__(self, seed: int, engine: Path, changes: dict[str, Any] | None = None):
        self.simulation = Simulation(seed)
        self.random = self.simulation.random
        self.swarm = replace(Swarm.draw(self.random), **(changes or {}))
        self.simulation.reorder, self.simulation.at_lines = self.swarm.reorder, self.swarm.at_lines
        self.simulation.collects, self.simulation.by_priority = self.swarm.collects, self.swarm.by_priority
        self.simulation.traced = lambda name: (
            "/runtime/" in name and self.swarm.lines_of in name and "/tests/" not in name
        )
        self.engine = engine
        self.trouble: list[str] = []
        self.asked_to_end = False
        self.left = 0
        self.loop = SimulatedLoop(self.simulation)
        self.llm: Any = None
        self.finalizer: Any = None  # of the LLM
        self.executor = SimulatedExecutor(self._before)

    def run(self) -> None:
        with simulated(self):
            self.llm = LLM(
                self.engine, kv_cache_memory=self.swarm.blocks, max_batch_size=self.swarm.batch, max_num_tokens=16,
                max_queue_size=self.swarm.queue, enable_prefix_caching=self.swarm.prefix_cache,
            )  # fmt: skip
            self.finalizer = self.llm._finalizer
            if self.swarm.observer_fails:
                self.llm.add_observer(_fail)
            app = create_app({"toy": self.llm})
            self.simulation.trace()
            self.simulation.spawn("loop", self._run_loop)
            self._start_clients(app)
            del app
            self._end()
            self._check_end()

    def detach_finalizer(self) -> None:
        """The LLM's finalizer holds its client, which holds this world by the executor, which holds the LLM: none of
        them would be freed before the interpreter ends. Nor may it close, by real threads, what belongs to a simulation
        that is over: where the LLM was dropped, and somebody still has it, it would."""
        if self.finalizer is not None:
            self.finalizer.detach()

    def _run_loop(self) -> None:
        asyncio.events.set_event_loop(self.loop)
        self.loop.run_forever()

    def _start_clients(self, app: Any) -> None:
        for number in range(self.swarm.clients):
            kind = getattr(self, "_" + self.random.choice(self.swarm.kinds))
            delay = self.random.choice((0.0, 0.0, 0.01, 0.3))
            ask = Ask.draw(self.random, self.swarm.batch)
            self.left += 1

            def work(kind: Any = kind, ask: Ask = ask, delay: float = delay, app: Any = app) -> None:
                try:
                    self.simulation.wait(lambda: False, delay)
                    kind(self.llm, ask, app)
                finally:
                    self.left -= 1

            self.simulation.spawn(f"client {number} {kind.__name__}", work)

    def _end(self) -> None:
        simulation, ending = self.simulation, self.swarm.ending
        if ending == "after":
            simulation.wait(lambda: self.left == 0, PATIENCE)
        else:
            simulation.wait(lambda: False, self.random.choice((0.0, 0.05, 0.5)))
            self.asked_to_end = True
        if ending == "drop":
            simulation.wait(lambda: self.left == 0, PATIENCE)  # a client holds the LLM
            if self.random.random() < 0.5:
                self._check_idle()
            self._drop()
        else:
            if ending == "after":
                self._check_idle()
            self.llm.shutdown(drain=ending == "drain", timeout=self.random.choice((0.0, 0.2, 30.0)))
        if not simulation.wait(lambda: self.left == 0, PATIENCE):
            self.trouble.append(f"{self.left} clients never came to an end: {simulation.alive}")
        self.loop.call_soon_threadsafe(self.loop.stop)
        simulation.wait(lambda: not simulation.alive, PATIENCE)

    def _drop(self) -> None:
        """Nobody has the LLM any more, and only the garbage collector sees it."""
        self.llm.cycle = self.llm
        gone = weakref.ref(self.llm)
        self.llm = None
        for _ in range(100):  # it does nothing while another thread is in it
            gc.collect()
            if gone() is None:
                return
            self.simulation.wait(lambda: False, 0.1)
        self.trouble.append("somebody still has the LLM")

    def _check_idle(self) -> None:
        """All have what they wanted: the engine must soon hold nothing. What was aborted ends a step later."""
        if not self.llm.running:
            self.trouble.append(f"the engine does not run: {self.llm._client._cause!r}")
            return
        stats: dict[str, Any] = {}

        def idle() -> bool:
            stats.update(self.llm.get_stats())
            return stats["running"] == stats["waiting"] == stats["used_blocks"] == 0 and not self.llm._client._requests

        for _ in range(100):
            if idle():
                return
            self.simulation.wait(lambda: False, 0.1)
        self.trouble.append(f"not idle: {stats}, requests {list(self.llm._client._requests)}")

    def _check_end(self) -> None:
        if self.simulation.alive:
            self.trouble.append(f"still there: {self.simulation.alive}")
        self.trouble += [f"{name}: {error!r}" for name, error in self.simulation.errors]
        if not self.executor.closed:
            self.trouble.append("the executor is still open")

    # What happens to the engine.

    def _before(self, what: str) -> None:
        self.simulation.pause()
        if self.random.random() < self.swarm.faults:
            raise self.random.choice((RuntimeError, MemoryError, OSError))(f"a made-up fault at {what}")

    # The clients. Each checks what it got.

    def _wait(self, llm: LLM, ask: Ask, app: Any) -> None:
        with self._trying(ask):
            self._check(ask, llm.generate_async(ask.prompt, ask.params).result())

    def _read(self, llm: LLM, ask: Ask, app: Any) -> None:
        with self._trying(ask):
            seen = 0
            handle = llm.generate_async(ask.prompt, ask.params)
            for output in handle:
                tokens = sum(len(choice.token_ids) for choice in output.outputs)
                self._expect(tokens >= seen, ask, "an output shrank")
                seen = tokens
                if self.random.random() < ask.leaves:
                    return
                self.simulation.wait(lambda: False, ask.slow)
            self._check(ask, output)

    def _poll(self, llm: LLM, ask: Ask, app: Any) -> None:
        with self._trying(ask):
            handle = llm.generate_async(ask.prompt, ask.params)
            while True:
                try:
                    self._check(ask, handle.result(0.05), aborted=True)
                    return
                except TimeoutError:
                    if self.random.random() < ask.leaves:
                        handle.abort()

    def _batch(self, llm: LLM, ask: Ask, app: Any) -> None:
        with self._trying(ask):
            for output in llm.generate([ask.prompt] * 3, ask.params):
                self._check(ask, output)

    def _await(self, llm: LLM, ask: Ask, app: Any) -> None:
        async def work() -> None:
            async with asyncio.timeout(ask.patience):
                self._check(ask, await llm.generate_async(ask.prompt, ask.params))

        self._in_loop(ask, work())

    def _read_async(self, llm: LLM, ask: Ask, app: Any) -> None:
        async def work() -> None:
            async with asyncio.timeout(ask.patience):
                async for output in llm.generate_async(ask.prompt, ask.params):
                    if output.finished:
                        self._check(ask, output)
                    elif self.random.random() < ask.leaves:
                        return
                    await asyncio.sleep(ask.slow)

        self._in_loop(ask, work())

    def _http(self, llm: LLM, ask: Ask, app: Any) -> None:
        self._in_loop(ask, self._ask_http(app, ask))

    async def _ask_http(self, app: Any, ask: Ask) -> None:
        status, body = await call(app, ask.body, ask.patience, ask.slow)
        if status is None:
            self._expect(ask.patience is not None, ask, "no answer, and nobody left")
        elif status == 200:
            self._check_http(ask, body, ask.patience is not None)
        else:
            code = json.loads(body)["error"]["code"]
            allowed = {429: True, 503: self.asked_to_end or self.swarm.panics, 500: self._may_fail, 507: self._may_fail}
            self._expect(bool(allowed.get(status)), ask, f"status {status}, {code}: {body[:200]!r}")

    def _check_http(self, ask: Ask, body: bytes, cut: bool) -> None:
        texts, reasons = dict.fromkeys(range(ask.params.n), ""), {}
        parts = [body] if not ask.streams else [line[6:] for line in body.split(b"\n") if line.startswith(b"data: ")]
        ended = not ask.streams
        for part in parts:
            if part == b"[DONE]":
                ended = True
                continue
            answer = json.loads(part)
            if "error" in answer:
                self._expect(self._may_fail or self.asked_to_end, ask, f"an error amid a stream: {answer}")
                return
            for choice in answer["choices"]:
                texts[choice["index"]] += choice["text"]
                reasons[choice["index"]] = choice["finish_reason"] or reasons.get(choice["index"])
        self._expect(ended or cut, ask, "a stream that stops in the middle")
        for index, text in texts.items():
            whole = ended and reasons.get(index) in ("stop", "length")
            expected = ask.text
            self._expect(text == expected if whole else expected.startswith(text), ask, f"{text!r} for {expected!r}")

    def _in_loop(self, ask: Ask, work: Any) -> None:
        """Runs a coroutine in the simulation's loop, and waits for it in this thread."""
        ended: list[BaseException | None] = []

        async def run() -> None:
            error: BaseException | None = None
            try:
                await work
            except BaseException as raised:
                error = raised
            ended.append(error)

        self.loop.call_soon_threadsafe(lambda: tasks.append(self.loop.create_task(run())))
        tasks: list[Any] = []
        self.simulation.wait(lambda: bool(ended))
        with self._trying(ask):
            if ended[0] is not None:
                raise ended[0]

    # What may happen to them.

    @property
    def _may_fail(self) -> bool:
        return self.swarm.faults > 0 or self.swarm.panics > 0

    @contextmanager
    def _trying(self, ask: Ask) -> Iterator[None]:
        try:
            yield
        except QueueFullError:
            pass
        except TimeoutError:
            self._expect(ask.patience is not None, ask, "timed out without a limit")
        except (RequestAbortedError, EngineStoppedError) as error:
            self._expect(self.asked_to_end, ask, f"{error!r}, and nobody ended the engine")
        except (OutOfMemoryError, Exception, Panic) as error:
            told = "made-up" in str(error) or isinstance(error, (OutOfMemoryError, Panic))
            self._expect(self._may_fail and told, ask, repr(error))

    def _check(self, ask: Ask, output: Any, aborted: bool = False) -> None:
        self._expect(output.finished, ask, "it is not finished")
        for choice in output.outputs:
            whole = choice.finish_reason in ("stop", "length")
            known = whole or choice.finish_reason in ("abort", "timeout")
            self._expect(known, ask, f"finish_reason {choice.finish_reason}")
            if choice.finish_reason == "abort":
                self._expect(aborted or self.asked_to_end, ask, "aborted by nobody")
            if choice.finish_reason == "timeout":
                self._expect(ask.params.timeout is not None, ask, "timed out without a limit")
            tokens, expected = choice.token_ids, ask.tokens
            self._expect(tokens == expected if whole else tokens == expected[: len(tokens)], ask, f"tokens {tokens}")
            self._expect(choice.text == ask.text if whole else ask.text.startswith(choice.text), ask, choice.text)

    def _expect(self, holds: bool, ask: Ask, what: str) -> None:
        if not holds:
            self.trouble.append(f"{what} ({ask})")


@dataclass(frozen=True)
class Ask:
    """What a client wants, and how it behaves."""

    prompt: dict[str, Any]
    params: SamplingParams
    streams: bool
    leaves: float  # how likely after each piece
    slow: float  # seconds before the next piece
    patience: float | None

    @classmethod
    def draw(cls, random: Any, batch: int) -> Ask:
        shared = [7] * random.choice((0, 5, 12))  # a beginning that others have, too
        ids = shared + [random.randrange(256) for _ in range(random.randint(1, 12))]
        params = SamplingParams(
            temperature=0.0, max_tokens=random.choice((1, 3, 20)), n=min(batch, random.choice((1, 1, 1, 2))),
            stop=random.choice(((), ("Q",), ("C", "X"))),
            timeout=random.choice((None, None, 0.0, 0.05, 5.0)),
            guided_decoding=random.choice((None, None, None, GuidedDecodingParams(regex="[A-Z]*"))),
        )  # fmt: skip
        return cls(
            {"prompt_token_ids": ids}, params, random.random() < 0.5, random.choice((0.0, 0.0, 0.3)),
            random.choice((0.0, 0.0, 0.05)), random.choice((None, None, 0.0, 0.1)),
        )  # fmt: skip

    @property
    def tokens(self) -> list[int]:
        """What it gets if nothing comes between."""
        allowed = LETTERS if self.params.guided_decoding is None else ALLOWED
        tokens = continuation(self.prompt["prompt_token_ids"], int(self.params.max_tokens or 0), allowed)
        ends = [at + 1 for at, token in enumerate(tokens) if letter(token) in self.params.stop]
        return tokens[: min(ends, default=len(tokens))]

    @property
    def text(self) -> str:
        return "".join(letter(token) for token in self.tokens if letter(token) not in self.params.stop)

    @property
    def body(self) -> dict[str, Any]:
        params = self.params
        more: dict[str, Any] = {"stop": list(params.stop)} if params.stop else {}
        if params.guided_decoding is not None:
            more["guided_regex"] = params.guided_decoding.regex
        return {
            "model": "toy", "prompt": self.prompt["prompt_token_ids"], "temperature": 0, "n": params.n,
            "max_tokens": params.max_tokens, "stream": self.streams, **more,
        }  # fmt: skip


def _fail(output: Any, error: Any) -> None:
    raise ValueError("an observer that fails")


async def call(app: Any, body: dict[str, Any], patience: float | None, slow: float) -> tuple[int | None, bytes]:
    """POST /v1/completions. patience: seconds after which the client leaves; slow: seconds that it takes per piece."""
    sent = json.dumps(body).encode()
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
        "path": "/v1/completions", "raw_path": b"/v1/completions", "query_string": b"", "root_path": "",
        "headers": [(b"content-type", b"application/json"), (b"content-length", str(len(sent)).encode()),
                    (b"host", b"localhost")],
        "client": ("127.0.0.1", 1), "server": ("localhost", 80),
    }  # fmt: skip
    pieces = [{"type": "http.request", "body": sent, "more_body": False}]
    status: list[int] = []
    answer = bytearray()
    gone = asyncio.Event()

    async def receive() -> dict[str, Any]:
        if pieces:
            return pieces.pop(0)
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        if gone.is_set():
            return
        if message["type"] == "http.response.start":
            status.append(message["status"])
        else:
            answer.extend(message.get("body", b""))
            await asyncio.sleep(slow)

    leaving = None if patience is None else asyncio.get_running_loop().call_later(patience, gone.set)
    try:
        await app(scope, receive, send)
    finally:
        if leaving is not None:
            leaving.cancel()
    return (status[0] if status else None), bytes(answer)


@contextmanager
def simulated(world: World) -> Iterator[None]:
    """The package's threads, locks and clocks are the simulation's, and its engine is stepped by it."""
    stand_ins: dict[Any, Any] = {
        threading: SimulatedThreading(world.simulation),
        time: SimulatedTime(world.simulation),
        queue: SimulatedQueues(world.simulation),
        ThreadPoolExecutor: lambda threads, thread_name_prefix="": Pool(world.simulation, threads),
    }
    replaced: list[tuple[Any, str, Any]] = []

    def put(module: Any, name: str, value: Any) -> None:
        replaced.append((module, name, getattr(module, name)))
        setattr(module, name, value)

    for name, module in list(sys.modules.items()):
        if name.startswith(PACKAGE):
            for attribute, value in list(vars(module).items()):
                for real, stand_in in stand_ins.items():
                    if value is real:
                        put(module, attribute, stand_in)

    def create_engine(engine: Any, options: Any, executor: Any = None) -> SteppedEngine:
        made = native.load_module().EngineOptions()
        made.kv_cache_bytes, made.max_batch_size = options.kv_cache_bytes, options.max_batch_size
        made.max_num_tokens, made.max_queue = options.max_num_tokens, options.max_queue_size
        made.prefix_cache = options.enable_prefix_caching
        made.debug_preempt_every = world.random.choice((0, 0, 3))
        made.debug_seed = world.random.randrange(1000)
        return SteppedEngine(world.simulation, world.executor, made)

    put(native, "create_engine", create_engine)
    vocabulary = Vocabulary(world.simulation, world.swarm.panics, Panic)
    put(prompts, "guided_vocabulary", lambda engine: vocabulary)
    if world.swarm.panics:
        from tensorwright.runtime.text.tokenizer import Tokenizer

        decode = Tokenizer.decode

        def panics(self: Any, *arguments: Any, **named: Any) -> str:
            if world.random.random() < world.swarm.panics:
                raise Panic("made-up")
            return decode(self, *arguments, **named)

        put(Tokenizer, "decode", panics)
    try:
        yield
    finally:
        world.detach_finalizer()
        world.simulation.close()
        native.load_module().release_clock()
        for module, name, value in reversed(replaced):
            setattr(module, name, value)
        asyncio.events.set_event_loop(None)
        world.loop.close()
