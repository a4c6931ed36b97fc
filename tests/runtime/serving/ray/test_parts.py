"""The parts of replicas on Ray that need no cluster: what passes over the wire, the line, the router, the settings."""

from __future__ import annotations

import asyncio
import pickle
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

pytest.importorskip("ray", reason="ray is not installed: pip install -e '.[ray]'")

from ray.serve._private.common import DeploymentID, ReplicaID, RequestMetadata
from ray.serve.request_router import PendingRequest

from tensorwright import GuidedDecodingParams, SamplingParams
from tensorwright.errors import InvalidOptionError
from tensorwright.runtime.requests.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput
from tensorwright.runtime.requests.request_state import RequestState
from tensorwright.runtime.serving.ray.application import split_arguments
from tensorwright.runtime.serving.ray.deployment import form_of, most_requests, processors
from tensorwright.runtime.serving.ray.replica import MAX_SILENCE, SendersQueues
from tensorwright.runtime.serving.ray.router import OnTheirWay, PolicyRouter
from tensorwright.runtime.serving.ray.scaling import ReplicaCountPolicy
from tensorwright.runtime.serving.ray.settings import RaySettings
from tensorwright.runtime.serving.ray.waiting_line import WaitingLine
from tensorwright.runtime.serving.ray.wire import RemoteRequest, events_of

EOS = (2,)


def output(*completions: CompletionOutput, **more: Any) -> RequestOutput:
    return RequestOutput(1, None, [5], list(completions), False, RequestMetrics(0.25, 0.5, cached_tokens=3), **more)


class TestWire:
    def test_events_give_the_output_that_they_were_made_of(self) -> None:
        params = SamplingParams(n=2, logprobs=1, prompt_logprobs=0, detokenize=False)
        tables = [{7: Logprob(-1.0, 2), 9: Logprob(-0.5, 1)}]
        first = CompletionOutput(0, "", [7], tables, -1.0)
        second = CompletionOutput(1, "", [2], [{2: Logprob(-2.0, 3)}], -2.0, "stop")
        made = output(first, second, prompt_logprobs=[None, {5: Logprob(-3.0, 4)}])
        state = RequestState(1, None, [5], params, None)
        for event in events_of(made, params, EOS):
            state.apply(event, 0.0)
        found = state.output()
        assert found.outputs == made.outputs
        assert found.prompt_logprobs == made.prompt_logprobs
        assert (found.metrics.queue_time, found.metrics.time_to_first_token, found.metrics.cached_tokens) == (
            0.25,
            0.5,
            3,
        )

    @pytest.mark.parametrize(
        ("completion", "params", "token"),
        [
            (CompletionOutput(token_ids=[7, 2], finish_reason="stop"), {}, 2),
            (CompletionOutput(token_ids=[7, 9], finish_reason="stop", stop_reason=9), {"stop_token_ids": (9,)}, 9),
            (CompletionOutput(token_ids=[7, 2], finish_reason="stop", stop_reason="x"), {"stop": "x"}, -1),
            (CompletionOutput(token_ids=[7, 8], finish_reason="stop"), {}, -1),
            (CompletionOutput(token_ids=[7, 2], finish_reason="length"), {}, -1),
            (CompletionOutput(token_ids=[7, 2]), {}, -1),
        ],
        ids=["end-of-sequence", "stop-token", "stop-string", "grammar", "length", "unfinished"],
    )
    def test_the_token_that_ended_a_completion_is_told(
        self, completion: CompletionOutput, params: dict[str, Any], token: int
    ) -> None:
        (event,) = events_of(output(completion), SamplingParams(**params), EOS)
        assert event.stop_token == token

    def test_nothing_new_is_no_event(self) -> None:
        assert events_of(output(CompletionOutput()), SamplingParams(), EOS) == []

    def test_requests_pass_between_processes(self) -> None:
        params = SamplingParams(stop="x", logit_bias={3: 1.0}, guided_decoding=GuidedDecodingParams(regex="a"))
        request = RemoteRequest([1, 2], params, (3,), "client", "engine", "sender", 4)
        assert pickle.loads(pickle.dumps(request)) == request


class TestWaitingLine:
    def test_as_many_pass_as_there_is_room(self) -> None:
        async def run() -> None:
            line, passed = WaitingLine(2), []

            async def one(priority: int, number: int) -> None:
                await line.enter(priority, number)
                passed.append(number)

            tasks = [asyncio.create_task(one(0, number)) for number in range(3)]
            tasks.append(asyncio.create_task(one(1, 3)))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert (passed, len(line)) == ([0, 1], 2)
            tasks[2].cancel()
            await asyncio.gather(tasks[2], return_exceptions=True)
            assert len(line) == 1
            line.set_room(3)
            await tasks[3]
            assert passed == [0, 1, 3]
            late = asyncio.create_task(one(0, 4))
            await asyncio.sleep(0)
            line.set_room(1)
            line.leave()
            line.leave()
            await asyncio.sleep(0)
            assert not late.done(), "two have left of three, and there is room for one"
            line.leave()
            await late

        asyncio.run(run())

    def test_whoever_is_cancelled_just_after_passing_leaves_its_place(self) -> None:
        async def run() -> None:
            line = WaitingLine(1)
            first = asyncio.create_task(line.enter(0, 0))
            await first
            second = asyncio.create_task(line.enter(0, 1))
            await asyncio.sleep(0)
            line.leave()  # Now the second one passes, and is cancelled before it notices.
            second.cancel()
            await asyncio.gather(second, return_exceptions=True)
            await line.enter(0, 2)

        asyncio.run(run())


def replica_id(name: str) -> ReplicaID:
    return ReplicaID(name, DeploymentID(name="engine", app_name="app"))


@dataclass
class FakeReplica:
    """What a router sees of a replica."""

    name: str
    routing_stats: dict[str, Any] | None = None
    engine: str = "e"
    max_ongoing_requests: int = 5
    replica_id: ReplicaID = field(init=False)

    def __post_init__(self) -> None:
        self.replica_id = replica_id(self.name)

    @property
    def replica_metadata(self) -> dict[str, Any]:
        return {"engine": self.engine}


def pending(request: RemoteRequest | None, number: int = 0) -> PendingRequest:
    metadata = RequestMetadata(request_id=str(number), internal_request_id=str(number))
    arguments = [] if request is None else [request]
    return PendingRequest(args=arguments, kwargs={}, metadata=metadata)


class TestRouter:
    @staticmethod
    async def chosen(router: PolicyRouter, replicas: list[FakeReplica], waiting: PendingRequest) -> list[list[str]]:
        ranks = await router.choose_replicas(replicas, waiting)  # type: ignore[arg-type]
        return [[replica.name for replica in rank] for rank in ranks]

    @staticmethod
    def router(routing: str = "least-loaded") -> PolicyRouter:
        from ray.serve._private.request_router.common import ReplicaQueueLengthCache

        made = object.__new__(PolicyRouter)  # Its base's constructor makes metrics, which need a cluster.
        made._deployment_id = DeploymentID(name="engine", app_name="app")
        made._replica_queue_len_cache = ReplicaQueueLengthCache()
        made.initialize_state(routing=routing)
        return made

    def test_the_chosen_one_is_tried_first_and_then_the_others(self) -> None:
        async def run() -> None:
            router = self.router()
            stats = {"requests": 3.0, "places": 4.0, "kv_usage": 0.1}
            replicas = [FakeReplica("a", stats), FakeReplica("b", {**stats, "requests": 1.0}), FakeReplica("c", stats)]
            request = pending(RemoteRequest([1], SamplingParams()))
            assert await self.chosen(router, replicas, request) == [["b"], ["a", "c"]]
            assert request.routing_context.should_backoff
            router.replica_queue_len_cache.update(replica_id("b"), 4)
            assert await self.chosen(router, replicas, request) == [["a"], ["b", "c"]], "its own count comes first"

        asyncio.run(run())

    def test_requests_that_come_together_do_not_choose_alike(self) -> None:
        async def run() -> None:
            router, replicas = self.router("prefix"), [FakeReplica("a", None), FakeReplica("b", {})]
            request = RemoteRequest([1], SamplingParams())
            firsts = [(await self.chosen(router, replicas, pending(request, number)))[0] for number in range(4)]
            assert sorted(firsts) == [["a"], ["a"], ["b"], ["b"]]

        asyncio.run(run())

    def test_a_continuation_goes_to_its_engine_alone(self) -> None:
        async def run() -> None:
            router = self.router()
            replicas = [FakeReplica("a", engine="old"), FakeReplica("b", engine="new"), FakeReplica("c", engine="old")]
            request = RemoteRequest([1], SamplingParams(), engine="new")
            assert await self.chosen(router, replicas, pending(request)) == [["b"], []]
            # Where there is none, any replica tells the request so.
            gone = pending(replace(request, engine="older"), 1)
            first, rest = await self.chosen(router, replicas, gone)
            assert sorted([*first, *rest]) == ["a", "b", "c"]

        asyncio.run(run())

    def test_other_calls_go_anywhere(self) -> None:
        async def run() -> None:
            assert await self.chosen(self.router(), [FakeReplica("a")], pending(None)) == [["a"]]

        asyncio.run(run())

    def test_what_is_on_its_way_is_counted_until_it_is_there_or_gone(self) -> None:
        async def run() -> None:
            counted = OnTheirWay()
            first, second = (pending(None, number) for number in range(2))
            counted.note("a", first)
            counted.note("a", second)
            assert (counted.count("a"), counted.count("b")) == (2, 0)
            counted.forget(first)
            second.future.cancel()
            assert counted.count("a") == 0

        asyncio.run(run())


def test_the_number_of_replicas_is_that_of_what_they_report() -> None:
    from ray.serve.config import AutoscalingContext

    running = [replica_id("a"), replica_id("b"), replica_id("new")]

    def context(requests: float, queued: float) -> AutoscalingContext:
        reported = {"requests": requests, "places": 4.0, "kv_usage": 0.0, "queued": queued}
        metrics = {name: dict.fromkeys(running[:2], value) for name, value in reported.items()}
        deployment = DeploymentID(name="engine", app_name="app")
        return AutoscalingContext(
            deployment, "engine", "app", 3, 3, running, 0, 0, metrics, None, 1, 10, {}, None, None, None, None
        )

    policy = ReplicaCountPolicy(target=1.0, least=1, most=10)
    assert policy(context(4, 0)) == (3, {}), "two are full, so two would do but for the margin"
    assert policy(context(4, 12)) == (5, {}), "two full ones, and a queue for three more, of which both have heard"
    assert policy(context(1, 0)) == (1, {})


def test_queues_of_senders_are_added_and_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("tensorwright.runtime.serving.ray.replica.time.monotonic", lambda: now)
    queues = SendersQueues()
    queues.note("a", 5)
    queues.note("b", 2)
    queues.note("a", 3)
    assert queues.total() == 5
    now += MAX_SILENCE / 2
    queues.note("b", 1)
    now += MAX_SILENCE / 2 + 1
    assert queues.total() == 1
    assert list(queues._queued) == ["b"]


class TestSettings:
    def test_options_without_ray_are_refused_by_their_flags(self) -> None:
        RaySettings().require_unused()
        RaySettings(ray=True, replicas=3).require_unused()
        with pytest.raises(InvalidOptionError, match="--target-pressure needs --ray"):
            RaySettings(target_pressure=0.5).require_unused()

    def test_what_a_replica_reserves(self) -> None:
        settings = RaySettings(ray=True)
        assert processors({}, settings) == 1
        assert processors({"threads": 4}, settings) == 4
        assert processors({"threads": 4}, replace(settings, replica_cpus=1.5)) == 1.5

    def test_how_many_requests_a_replica_has(self) -> None:
        assert most_requests({"max_batch_size": 8}) == 10
        assert most_requests({"max_batch_size": 1}) == 2
        assert most_requests({"max_num_tokens": 16}) == 20
        assert most_requests({}) == 80

    def test_replicas_are_the_same_only_where_all_is_that_they_depend_on(self) -> None:
        settings = RaySettings(ray=True)
        made = ("/e", {"threads": 1}, settings, 30.0, 300.0, "digest")
        same = form_of(*made)
        others = [
            ("/f", *made[1:]),
            ("/e", {"threads": 2}, *made[2:]),
            (*made[:2], replace(settings, replicas=2), *made[3:]),
            (*made[:5], "other"),
        ]
        assert len({same, *(form_of(*other) for other in others)}) == 5
        assert form_of(*made[:2], replace(settings, resume=True), *made[3:]) == same

    def test_arguments_of_serve_run_are_options(self) -> None:
        given = split_arguments({"engine": "/e/pico", "threads": 2, "resume": True, "max_body_size": 9, "api_keys": ()})
        assert (given.name, given.options, given.ray.resume, given.server.max_body_size) == (
            "pico", {"threads": 2}, True, 9,
        )  # fmt: skip
        for wrong in ("port", "ray_address", "thread"):
            with pytest.raises(InvalidOptionError, match=f"the application has no option '{wrong}'"):
                split_arguments({"engine": "/e", wrong: 1})
