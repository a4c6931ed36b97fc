"""Serves OpenVINO GenAI's ContinuousBatchingPipeline over as little HTTP as a load test needs.

    python openvino_server.py FOLDER PORT THREADS SEQUENCES STEP_TOKENS PREFIX_GIB

It runs in the peer's environment, with the standard library and openvino_genai only: POST /v1/completions with a
prompt of token ids, streaming, greedy; GET /v1/models. PREFIX_GIB is the size of a cache that keeps prefixes; with 0
none is kept. A step holds Python's lock, so the pipeline has a process of its own, which takes new requests between
steps, as its own loop would, and sends tokens to this one for the clients.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import multiprocessing
import os
import signal
import sys
import threading
from multiprocessing.connection import Connection
from typing import Any

NAME = "openvino-genai"


def run_pipeline(
    pipe: Connection, folder: str, threads: int, sequences: int, step_tokens: int, prefix_gib: int
) -> None:
    """Receives (number, ids, max_tokens), or (number, None, 0) to cancel. Sends None, then (number, ids, ended)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: a stopped process cannot notice its parent's end
    import numpy as np
    import openvino
    import openvino_genai

    scheduler = openvino_genai.SchedulerConfig()
    scheduler.enable_prefix_caching, scheduler.dynamic_split_fuse = prefix_gib > 0, True
    scheduler.max_num_batched_tokens, scheduler.max_num_seqs = step_tokens, sequences
    scheduler.cache_size = prefix_gib or 1
    options = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    pipeline = openvino_genai.ContinuousBatchingPipeline(folder, scheduler, "CPU", options)
    running = openvino_genai.GenerationStatus.RUNNING
    handles: dict[int, Any] = {}
    pipe.send(None)
    while True:
        while pipe.poll(None if not handles else 0):
            number, ids, count = pipe.recv()
            if ids is None:
                if handle := handles.pop(number, None):
                    handle.cancel()
                continue
            config = openvino_genai.GenerationConfig()
            config.max_new_tokens, config.ignore_eos, config.do_sample = count, True, False
            tensor = openvino.Tensor(np.array([ids], dtype=np.int64))
            handles[number] = pipeline.add_request(number, tensor, config)
        if pipeline.has_non_finished_requests():
            pipeline.step()
        for number, handle in list(handles.items()):
            tokens = [t for part in handle.read().values() for t in part.generated_ids] if handle.can_read() else []
            ended = handle.get_status() != running and not handle.can_read()
            if tokens or ended:
                pipe.send((number, tokens, ended))
            if ended:
                del handles[number]


class Server:
    def __init__(self, pipe: Connection, folder: str):
        import openvino_genai

        self.pipe, self.tokenizer = pipe, openvino_genai.Tokenizer(folder)
        self.queues: dict[int, asyncio.Queue[tuple[list[int], bool]]] = {}
        self.number = 0

    def listen(self, loop: asyncio.AbstractEventLoop) -> None:
        """Puts tokens of the pipeline into the queue of their request. If the pipeline ends, this server ends, too."""
        try:
            while True:
                number, tokens, ended = self.pipe.recv()
                loop.call_soon_threadsafe(self._hand_out, number, tokens, ended)
        except (EOFError, ConnectionError):
            os._exit(1)

    def _hand_out(self, number: int, tokens: list[int], ended: bool) -> None:
        if number in self.queues:
            self.queues[number].put_nowait((tokens, ended))

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers requests one after the other, as long as the client keeps the connection."""
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = head.decode().lower().splitlines()
                size = next((int(line.split(":")[1]) for line in lines if line.startswith("content-length:")), 0)
                body = json.loads(await reader.readexactly(size) or b"{}")
                if lines[0].startswith("post /v1/completions "):
                    await self.complete(body, writer)
                elif lines[0].startswith("get /v1/models "):
                    answer(writer, 200, {"data": [{"id": NAME}]})
                else:
                    answer(writer, 404, {"error": {"message": f"no path {lines[0]}"}})
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def complete(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        ids = body.get("prompt")
        if not isinstance(ids, list) or not body.get("stream") or body.get("temperature") or not body.get("ignore_eos"):
            message = "only streams of greedy tokens after token ids are served, with ignore_eos"
            answer(writer, 400, {"error": {"message": message}})
            return
        self.number = number = self.number + 1
        queue = self.queues[number] = asyncio.Queue()
        self.pipe.send((number, ids, body["max_tokens"]))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        count, ended = 0, False
        try:
            while not ended:
                tokens, ended = await queue.get()
                count += len(tokens)
                if tokens:
                    event(writer, json.dumps({"choices": [{"index": 0, "text": self.tokenizer.decode(tokens) + " "}]}))
                    await writer.drain()
        finally:
            del self.queues[number]
            if not ended:
                self.pipe.send((number, None, 0))
        event(writer, json.dumps({"choices": [], "usage": {"completion_tokens": count}}))
        event(writer, "[DONE]")
        writer.write(b"0\r\n\r\n")


def event(writer: asyncio.StreamWriter, data: str) -> None:
    part = f"data: {data}\n\n".encode()
    writer.write(b"%x\r\n%s\r\n" % (len(part), part))


def answer(writer: asyncio.StreamWriter, status: int, message: dict[str, Any]) -> None:
    body = json.dumps(message).encode()
    head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)


async def serve(pipe: Connection, folder: str, port: int) -> None:
    server = Server(pipe, folder)
    threading.Thread(target=server.listen, args=(asyncio.get_running_loop(),), daemon=True).start()
    listener = await asyncio.start_server(server.connection, "127.0.0.1", port)
    await listener.serve_forever()


def main() -> None:
    folder, port, *numbers = sys.argv[1:]
    here, there = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    context.Process(target=run_pipeline, args=(there, folder, *map(int, numbers)), daemon=True).start()
    there.close()
    here.recv()  # waits until the model is loaded; EOFError if that failed
    asyncio.run(serve(here, folder, int(port)))


if __name__ == "__main__":
    main()
