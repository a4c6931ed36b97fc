"""Replicas on a real cluster of several nodes: the same answers as in one process, and what becomes of requests when
replicas come, go, and are replaced."""

from __future__ import annotations

import json
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from support.ray_cluster import Fleets, kill, replicas, replicas_of
from support.served import completion, read_events, serve
from support.toy_engine import ENDLESS, make_toy, write_toy_engine
from support.waiting import PATIENCE, wait_until
from tensorwright import LLM, GuidedDecodingParams, SamplingParams
from tensorwright.errors import EngineError, InvalidOptionError, QueueFullError, ReplicaLostError
from tensorwright.runtime.engine.engine_dir import open_engine

# Ray announces that this will be a variable of the environment one day.
pytestmark = pytest.mark.filterwarnings("ignore:The `metrics_interval_s` field")
PROMPT = {"prompt_token_ids": [1, 2, 3]}


def tokens(handle: Any) -> list[int]:
    return handle.so_far().outputs[0].token_ids


def drawn(count: int, seed: int = 1) -> SamplingParams:
    return SamplingParams(max_tokens=count, ignore_eos=True, temperature=1.0, seed=seed, detokenize=False)


@pytest.fixture(scope="module")
def fleet(fleets: Fleets, toy_engine: Path) -> Any:
    """For the tests of TestOneFleet, which stand first: others start a fleet of their own, and end this one."""
    return fleets.start(toy_engine, replicas=2, resume=True)


@pytest.fixture(scope="module")
def model(fleet: Any) -> Any:
    return fleet.models["m"]


def wait_until_two(model: Any) -> None:
    """Two replicas are there, of which the client knows, and no process of another."""
    wait_until(lambda: model.get_stats()["fleet"]["replicas"] == 2 and len(replicas()) == 2)


class TestOneFleet:
    """Of two replicas: first nothing happens to it, then they are killed, and in the end they are replaced."""

    @pytest.mark.parametrize(
        "params",
        [
            SamplingParams(max_tokens=12, temperature=0),
            SamplingParams(max_tokens=12, seed=3, n=3),
            SamplingParams(max_tokens=12, seed=3, logprobs=2, prompt_logprobs=1),
            SamplingParams(max_tokens=64, seed=5, stop=["e", "a"]),
            SamplingParams(max_tokens=64, seed=5, n=2, stop=["e"], include_stop_str_in_output=True),
            SamplingParams(max_tokens=6, n=2, beam_width=3, temperature=0),
            SamplingParams(max_tokens=12, seed=1, guided_decoding=GuidedDecodingParams(regex="[ab]{3,6}")),
            SamplingParams(max_tokens=12, seed=1, presence_penalty=1.0, bad_words=["x"], min_tokens=4),
        ],
        ids=["greedy", "n", "logprobs", "stop", "stops", "beams", "guided", "penalties"],
    )
    def test_are_those_of_an_engine_here(self, model: Any, toy_llm: LLM, params: SamplingParams) -> None:
        found = model.generate_async("def f(", params).result(PATIENCE)
        expected = toy_llm.generate("def f(", params)
        assert found.outputs == expected.outputs
        assert found.prompt_logprobs == expected.prompt_logprobs
        assert found.metrics.time_to_first_token is not None

    def test_come_as_they_are_made(self, model: Any) -> None:
        parts = iter(model.generate_async(PROMPT, drawn(ENDLESS)))
        first, second = next(parts), next(parts)
        assert 0 < len(first.outputs[0].token_ids) < len(second.outputs[0].token_ids) < ENDLESS
        parts.close()
        wait_until(lambda: model.get_stats()["running"] == 0)

    def test_an_abort_ends_the_request_on_its_replica(self, model: Any) -> None:
        handle = model.generate_async(PROMPT, drawn(ENDLESS))
        wait_until(lambda: tokens(handle))
        wait_until(lambda: model.get_stats()["running"] == 1)
        assert handle.abort()
        assert handle.result(PATIENCE).outputs[0].finish_reason == "abort"
        wait_until(lambda: model.get_stats()["running"] == 0)
        assert not handle.abort()

    def test_prompts_with_one_beginning_find_its_cache(self, model: Any) -> None:
        """Whichever replica has it; the other one has nothing of it."""
        begin = [7] * 96
        model.generate_async({"prompt_token_ids": begin}, drawn(1)).result(PATIENCE)
        for last in range(4):
            again = model.generate_async({"prompt_token_ids": [*begin, last]}, drawn(1)).result(PATIENCE)
            assert again.metrics.cached_tokens >= 64

    def test_a_lost_request_goes_on_elsewhere_with_the_same_bits(self, model: Any, toy_llm: LLM) -> None:
        """It is lost twice, for both replicas are killed."""
        wait_until_two(model)
        handle = model.generate_async(PROMPT, drawn(ENDLESS))
        wait_until(lambda: len(tokens(handle)) > 50)
        for pid in replicas():
            kill(pid)
        wait_until(lambda: model.get_stats()["fleet"]["resumed"] >= 1)  # tokens of before may be on their way
        count = len(tokens(handle))
        wait_until(lambda: len(tokens(handle)) > count + 50)
        handle.abort()
        found = handle.result(PATIENCE).outputs[0].token_ids
        assert found == toy_llm.generate(PROMPT, drawn(len(found))).outputs[0].token_ids

    def test_engines_are_replaced_while_requests_finish(
        self, fleet: Any, model: Any, toy_llm: LLM, tmp_path: Path
    ) -> None:
        wait_until_two(model)
        old = model.generate_async(PROMPT, drawn(ENDLESS))
        wait_until(lambda: tokens(old))
        before = replicas()
        other = write_toy_engine(tmp_path / "other", make_toy(max_seq_len=ENDLESS + 128, seed=4))
        with ThreadPoolExecutor(1) as thread:
            replacing = thread.submit(fleet.replace, "m", open_engine(other))
            wait_until(lambda: model.get_stats()["fleet"]["replicas"] < 2 or set(replicas()) - set(before))
            assert model.generate_async(PROMPT, drawn(5)).result(PATIENCE).finished  # one replica is always there
            assert not old.done
            old.abort()
            replacing.result(PATIENCE)
        wait_until(lambda: not set(before) & set(replicas()), "the processes of the old engine have ended")
        assert len(replicas()) == 2
        found = tokens(old)[:500]
        assert found == toy_llm.generate(PROMPT, drawn(len(found))).outputs[0].token_ids
        with LLM(other, kv_cache_memory="32MiB", threads=1) as second:
            new = model.generate_async(PROMPT, drawn(20)).result(PATIENCE)
            assert new.outputs[0].token_ids == second.generate(PROMPT, drawn(20)).outputs[0].token_ids
        assert model.engine.path == other
        with pytest.raises(
            InvalidOptionError, match="max_seq_len must be that of the engine that is served, 60128, got 64"
        ):
            fleet.replace("m", open_engine(write_toy_engine(tmp_path / "shorter", make_toy(max_seq_len=64))))


def test_a_killed_replica_loses_only_what_it_had_begun(fleets: Fleets, toy_engine: Path, toy_llm: LLM) -> None:
    """Each replica runs two requests and has a third one waiting; all others wait in the server."""
    options = {"max_batch_size": 2, "max_queue_size": 8}
    model = fleets.start(toy_engine, options, replicas=2, routing="least-loaded").models["m"]
    long = [model.generate_async(PROMPT, drawn(ENDLESS, seed)) for seed in range(6)]
    wait_until(lambda: sum(bool(tokens(handle)) for handle in long) == 4)
    begun = [handle for handle in long if tokens(handle)]
    short = [model.generate_async(PROMPT, drawn(5, seed)) for seed in range(6)]
    with pytest.raises(QueueFullError, match="12 requests, running and waiting"):
        model.generate_async(PROMPT, drawn(5))
    wait_until(lambda: model.get_stats()["waiting"] == 8)
    kill(replicas()[0])

    # The client hears of each loss by itself. An abort that came before it would make it none.
    wait_until(lambda: model.get_stats()["fleet"]["restarted"] == 1 and sum(handle.done for handle in long) == 2)
    lost = [handle for handle in long if handle.done]
    assert all(handle in begun for handle in lost)
    for handle in long:
        handle.abort()
    found = [handle.result(PATIENCE).outputs[0].token_ids for handle in short]
    expected = [toy_llm.generate(PROMPT, drawn(5, seed)).outputs[0].token_ids for seed in range(6)]
    assert found == expected
    for handle in lost:
        with pytest.raises(ReplicaLostError, match="send it again"):
            handle.result(PATIENCE)
    fleet = model.get_stats()["fleet"]
    assert (fleet["lost"], fleet["restarted"], fleet["resumed"]) == (2, 1, 0)


def test_the_number_of_replicas_follows_the_load(fleets: Fleets, toy_engine: Path) -> None:
    options = {"max_batch_size": 2}
    model = fleets.start(
        toy_engine, options, replicas=1, max_replicas=2, scale_up_delay=0.1, scale_down_delay=0.1
    ).models["m"]
    assert len(replicas()) == 1
    handles = [model.generate_async(PROMPT, drawn(ENDLESS, seed)) for seed in range(3)]  # and there are two places
    wait_until(lambda: model.get_stats()["fleet"]["replicas"] == 2)
    assert model.generate_async(PROMPT, drawn(5)).result(PATIENCE).finished, "the second one has places"
    assert not all(handle.done for handle in handles)
    for handle in handles:
        handle.abort()
    wait_until(lambda: len(replicas()) == 1)
    assert model.generate_async(PROMPT, drawn(5)).result(PATIENCE).finished


def test_a_question_after_the_end_starts_no_cluster(fleets: Fleets) -> None:
    """Ray Serve's threads may ask for something late: Ray would connect by itself, beside what connects next."""
    ray = pytest.importorskip("ray")
    fleets.close()
    with pytest.raises(ray.exceptions.RaySystemError, match="has not been started"):
        ray.get_actor("nobody")
    assert not ray.is_initialized()


def test_replicas_that_do_not_start_say_why(fleets: Fleets, toy_engine: Path) -> None:
    with pytest.raises(EngineError, match=r"do not start.* kv_cache_memory must hold at least one block"):
        fleets.start(toy_engine, {"kv_cache_memory": "1KiB"})
    assert replicas() == []


def test_the_server_streams_reloads_drains_and_leaves_its_replicas(
    fleets: Fleets, toy_engine: Path, toy_llm: LLM, tmp_path: Path
) -> None:
    fleets.close()
    place = tmp_path / "current"
    place.symlink_to(toy_engine)
    patient = ("--drain-timeout", str(PATIENCE))  # The stream that SIGTERM meets ends by itself, however slow it is.
    options = ("--ray", "--ray-address", fleets.address, "--ray-app", "cli", "--keep-replicas", "--resume", *patient)
    application = "cli-pico"
    with serve(place, tmp_path, *options) as server:
        text = toy_llm.generate("def", SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)).outputs[0].text
        answer = server.client.post("/v1/completions", json=completion("def", 8)).raise_for_status().json()
        assert answer["choices"][0]["text"] == text
        body = completion("def", 8, stream=True)
        with server.client.stream("POST", "/v1/completions", json=body) as stream:
            events = read_events(stream.iter_lines())
        assert events.pop() == "[DONE]"
        assert "".join(json.loads(event)["choices"][0]["text"] for event in events) == text
        assert server.client.get("/ready").status_code == 200
        wait_until(lambda: server.metric("tensorwright_generated_tokens_total", model="pico") >= 16)
        assert server.metric("tensorwright_replicas", model="pico") == 1
        assert server.metric("tensorwright_replica_requests_lost_total") == 0

        (before,) = replicas_of(application)
        fingerprint = answer["system_fingerprint"]
        other = write_toy_engine(tmp_path / "other", make_toy(max_seq_len=ENDLESS + 128, seed=4))
        place.unlink()
        place.symlink_to(other)
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: any(line["message"] == "reloaded" for line in server.log_lines()))
        answer = server.client.post("/v1/completions", json=completion("def", 8)).raise_for_status().json()
        assert answer["system_fingerprint"] != fingerprint
        wait_until(lambda: before not in replicas_of(application), "the process of the old engine has ended")
        (after,) = replicas_of(application)

        body = completion("def", ENDLESS // 30, stream=True)
        with server.client.stream("POST", "/v1/completions", json=body) as stream:
            lines = stream.iter_lines()
            next(lines)
            server.process.send_signal(signal.SIGTERM)
            assert read_events(lines)[-1] == "[DONE]"
        assert server.process.wait(PATIENCE) == 0
    assert replicas_of(application) == [after], "--keep-replicas"
    with serve(place, tmp_path, *(option for option in options if option != "--keep-replicas")) as server:
        assert server.client.post("/v1/completions", json=completion("def", 8)).status_code == 200
        assert replicas_of(application) == [after], "the next server takes the replicas over"
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE) == 0
    wait_until(lambda: replicas_of(application) == [])
