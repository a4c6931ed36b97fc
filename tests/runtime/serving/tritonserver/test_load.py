"""Many clients at once, and clients that leave: nobody else notices, and KV blocks of what was given up are free."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from support.places import TESTS
from support.toy_engine import ENDLESS
from support.triton_client import GrpcStream, text_of, tokens_of
from support.triton_server import TritonServer
from support.waiting import wait_until
from tensorwright import LLM, SamplingParams

LONG = {"text_input": "import os", "max_tokens": ENDLESS, "min_tokens": ENDLESS, "stream": True}


def used_blocks(server: TritonServer, model: str) -> float | None:
    return server.metric("tensorwright_kv_blocks_used", model=model)


def wait_until_aborted(server: TritonServer, count: float) -> None:
    wait_until(lambda: aborted(server) == count, f"{count} aborted completions")
    wait_until_free(server)


def wait_until_free(server: TritonServer, model: str = "endless") -> None:
    """By both names of the figure: the server's page of metrics may show one of them a moment before the other."""
    wait_until(lambda: used_blocks(server, model) == 0, "free KV blocks")
    other = {"model": model, "kv_cache_block_type": "used"}
    wait_until(
        lambda: server.metric("nv_trt_llm_kv_cache_block_metrics", **other) == 0,
        "free KV blocks of TensorRT-LLM's name",
    )


def waiting(server: TritonServer) -> float | None:
    return server.metric("tensorwright_requests_waiting", model="second")


def aborted(server: TritonServer) -> float:
    return server.metric("tensorwright_completions_total", model="endless", outcome="aborted") or 0.0


def test_64_concurrent_streams_get_the_tokens_they_get_alone(
    server: TritonServer, llm: LLM, prompts: list[str]
) -> None:
    params = [
        SamplingParams(temperature=0.9, top_k=40, seed=seed, max_tokens=8 + seed % 9, ignore_eos=True)
        for seed in range(64)
    ]
    texts = [prompts[seed % len(prompts)] for seed in range(64)]
    expected = [llm.generate(text, each) for text, each in zip(texts, params, strict=True)]
    found: dict[int, list[int]] = {}

    def one_client(client: int) -> None:
        with GrpcStream(server.grpc) as stream:
            for seed in range(client, 64, 8):
                ids = expected[seed].prompt_token_ids
                stream.ask("tensorwright", str(seed), {
                    "input_ids": ids, "input_lengths": len(ids), "request_output_len": 8 + seed % 9, "streaming": True,
                    "runtime_top_k": 40, "temperature": 0.9, "seed": np.array([[seed]], "u8"),
                    "end_id": llm.engine.vocab_size - 1,
                })  # fmt: skip
            for name, answers in stream.answers(map(str, range(client, 64, 8))).items():
                found[int(name)] = tokens_of(answers)

    threads = [threading.Thread(target=one_client, args=(client,)) for client in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {seed: output.outputs[0].token_ids for seed, output in enumerate(expected)}


def test_cancelled_streams_free_their_blocks_and_leave_the_others_alone(server: TritonServer, toy_llm: LLM) -> None:
    expected = toy_llm.generate("class ", SamplingParams(temperature=0, max_tokens=48)).outputs[0].text
    before = aborted(server)
    with GrpcStream(server.grpc) as steady:
        for storm in range(5):
            steady.ask("endless", str(storm), {"text_input": "class ", "max_tokens": 48, "stream": True})
            leaving = [GrpcStream(server.grpc) for _ in range(4)]
            for stream in leaving:
                for index in range(4):
                    stream.ask("endless", str(index), LONG)
            for stream in leaving:
                started: set[str] = set()
                while len(started) < 4:
                    started.add(stream.next()[0])
                stream.close(cancel=True)
        for answers in steady.answers(map(str, range(5))).values():
            assert text_of(answers) == expected
    wait_until_aborted(server, before + 80)


def test_stop_true_ends_the_request_of_the_same_id_with_what_it_has(server: TritonServer, toy_llm: LLM) -> None:
    before = aborted(server)
    ids = toy_llm.engine.tokenizer.encode("import os")
    asked = {
        "input_ids": ids,
        "input_lengths": len(ids),
        "request_output_len": ENDLESS,
        "min_tokens": ENDLESS,
        "streaming": True,
    }
    with GrpcStream(server.grpc) as stream, GrpcStream(server.grpc) as other:
        stream.ask("endless", "mine", asked)
        stream.next()
        other.ask("endless", "mine", {"stop": True})
        assert other.answers(["mine"])["mine"] == []
        tokens = tokens_of(stream.answers(["mine"])["mine"])
    assert 0 < len(tokens) < ENDLESS
    params = SamplingParams(temperature=0, max_tokens=len(tokens), min_tokens=len(tokens))
    assert tokens == toy_llm.generate("import os", params).outputs[0].token_ids
    wait_until_aborted(server, before + 1)


def test_stop_without_an_id_is_refused(server: TritonServer) -> None:
    with GrpcStream(server.grpc) as stream:
        stream.ask("endless", "", {"stop": True})
        assert "needs the id of the request to stop" in stream.error()


def test_a_client_killed_frees_its_blocks(server: TritonServer) -> None:
    before = aborted(server)
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    client = subprocess.Popen(
        [sys.executable, "-P", "-m", "support.triton_leaver", server.grpc, "endless", str(ENDLESS)],
        env=environment, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert client.stdout is not None
    assert client.stdout.readline() == b"reading\n"
    client.kill()
    client.wait()
    client.stdout.close()
    wait_until_aborted(server, before + 1)


def test_an_http_client_that_leaves_frees_its_blocks(server: TritonServer) -> None:
    before = aborted(server)
    connection = http.client.HTTPConnection(server.http)
    connection.request("POST", "/v2/models/endless/generate_stream", json.dumps(LONG))
    answer = connection.getresponse()
    assert answer.readline().startswith(b"data: ")
    connection.close()
    answer.close()
    wait_until_aborted(server, before + 1)


def test_a_deadline_of_the_client_frees_its_blocks(server: TritonServer) -> None:
    before = aborted(server)
    for seconds in (0.5, 5, 50):  # a slow machine may not have begun when the deadline comes
        answers: list[object] = []
        with GrpcStream(server.grpc, stream_timeout=seconds) as stream:
            stream.ask("endless", "late", LONG)
            with pytest.raises(Exception, match="Deadline Exceeded"):
                answers.extend(iter(stream.next, None))
        if answers:
            break
    assert answers
    wait_until(lambda: aborted(server) > before, "an aborted completion")
    wait_until_free(server)


def test_timeouts_end_a_request_with_what_it_has(server: TritonServer) -> None:
    with GrpcStream(server.grpc) as stream:
        stream.ask("second", "tensor", {**LONG, "timeout": 0.2, "return_finish_reason": True})
        answers = stream.answers(["tensor"])["tensor"]
        assert answers[-1]["finish_reason"].reshape(-1)[0] == b"timeout"
        stream.ask("second", "parameter", {**LONG, "return_finish_reason": True}, timeout=200_000)  # microseconds
        answers = stream.answers(["parameter"])["parameter"]
        assert answers[-1]["finish_reason"].reshape(-1)[0] == b"timeout"
    wait_until_free(server, "second")


def test_higher_priority_runs_first(server: TritonServer) -> None:
    """`second` runs one completion at a time: what waits is taken by priority, then by arrival."""
    short = {"text_input": "import os", "max_tokens": 2}
    with GrpcStream(server.grpc) as running, GrpcStream(server.grpc) as stream:
        running.ask("second", "running", LONG)
        running.next()
        for name, priority in (("low", -1), ("middle", 0), ("high", 5)):
            stream.ask("second", name, {**short, "priority": priority})
        wait_until(lambda: waiting(server) == 3, "three that wait")
        running.close(cancel=True)
        stream.answers(["low", "middle", "high"])
    assert stream.ended == ["high", "middle", "low"]


def test_a_full_queue_refuses_and_serves_what_it_took(server: TritonServer) -> None:
    """`second` takes one to run and eight to wait."""
    streams = [GrpcStream(server.grpc) for _ in range(10)]
    with GrpcStream(server.grpc) as running:
        running.ask("second", "running", LONG)
        running.next()
        for some in (streams[:8], streams[8:]):
            for stream in some:
                stream.ask("second", "1", {"text_input": "import os", "max_tokens": 2})
            wait_until(lambda: waiting(server) == 8, "a full queue")
        for stream in streams[8:]:
            assert "queue" in stream.error()
        running.close(cancel=True)
    for stream in streams:
        if stream in streams[:8]:
            assert len(stream.answers(["1"])["1"]) == 1
        stream.close()
    wait_until_free(server, "second")


def test_metrics_count_what_was_served(server: TritonServer) -> None:
    def value(name: str, **labels: str) -> float:
        return server.metric(name, model="ensemble", version="1", **labels) or 0.0

    names = [
        ("tensorwright_generated_tokens_total", {}),
        ("tensorwright_output_tokens_sum", {}),
        ("tensorwright_completions_by_reason_total", {"reason": "length"}),
        ("nv_llm_output_token_len_sum", {"response_metric_type": "total_output_tokens"}),
    ]
    before = [value(name, **labels) for name, labels in names]
    asked = {"text_input": "import os", "max_tokens": 10, "min_tokens": 10}
    for _ in range(3):
        assert server.get("/v2/models/ensemble/generate", asked)[0] == 200

    def counted() -> list[float]:
        return [value(name, **labels) - b for b, (name, labels) in zip(before, names, strict=True)]

    # The engine, the model and Triton each publish what they count in their own time.
    wait_until(lambda: counted() == [30, 30, 3, 30], "30 tokens of 3 requests")
    assert value("nv_trt_llm_request_metrics", request_type="max") == 64
    assert value("nv_trt_llm_kv_cache_block_metrics", kv_cache_block_type="max") > 0
    assert value("tensorwright_engine_up") == 1
