"""Makes the Ray Serve application of one engine: its replicas, their number, their router and their health checks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import xxhash
from ray import serve
from ray.serve import Application
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig

import tensorwright
from tensorwright.options.declare import options_in
from tensorwright.options.engine import DEFAULT_LIMITS
from tensorwright.options.ray import RayFields
from tensorwright.runtime.serving.ray.replica import EngineReplica
from tensorwright.runtime.serving.ray.settings import RaySettings

DEPLOYMENT = "engine"
"""The name of the replicas' deployment in each application."""
AHEAD = 4
"""One request for so many places of the batch may wait in the replica, so that a place that becomes free is taken at
the engine's next step. All others wait in the server, which sends them to whichever replica has room first."""
STATS_SECONDS = 1.0
HEALTH_SECONDS = 2.0
HEALTH_TIMEOUT = 10.0
OF_SERVER = ("ray", "ray_address", "ray_app", "keep_replicas", "resume", "replica_start_timeout")
"""The options of RayFields that the replicas do not depend on."""
ONE_AT_A_TIME = 1e-9
"""The share of the replicas that are replaced at once; Ray Serve replaces at least one."""


def engine_application(
    path: str,
    options: dict[str, Any],
    settings: RaySettings,
    drain_timeout: float,
    max_stall_seconds: float,
    digest: str = "",
) -> Application:
    """Returns an application whose deployment DEPLOYMENT has the replicas of one engine.

    path: the engine, an absolute path that each machine has. options: keywords of LLM. drain_timeout: the seconds that
    a replica which is to end gives the requests that it has. digest: the engine's, if it is known here.
    """
    cpus = processors(options, settings)
    form = form_of(path, options, settings, drain_timeout, max_stall_seconds, digest)
    options = {**options, "threads": options.get("threads") or max(1, int(cpus))}
    router: dict[str, Any] = {
        "request_router_class": "tensorwright.runtime.serving.ray.router.PolicyRouter",
        "request_router_kwargs": {"routing": settings.routing},
        "request_routing_stats_period_s": STATS_SECONDS,
    }
    deployment = serve.deployment(
        name=DEPLOYMENT,
        ray_actor_options={"num_cpus": cpus, "num_gpus": settings.replica_gpus},
        max_ongoing_requests=most_requests(options),
        rolling_update_percentage=ONE_AT_A_TIME,
        request_router_config=RequestRouterConfig(**router),
        health_check_period_s=HEALTH_SECONDS,
        health_check_timeout_s=HEALTH_TIMEOUT,
        graceful_shutdown_timeout_s=drain_timeout,
        graceful_shutdown_wait_loop_s=0.5,
        logging_config={"log_level": "WARNING", "enable_access_log": False},
        **_number(settings),
    )(EngineReplica)
    return deployment.bind(path, options, max_stall_seconds, form)


def form_of(
    path: str,
    options: Mapping[str, Any],
    settings: RaySettings,
    drain_timeout: float,
    max_stall_seconds: float,
    digest: str,
) -> str:
    """Returns a text that is equal for applications that would be the same: of one version of Tensorwright, made with
    equal arguments of `engine_application`. What only the server reads of the settings does not count."""
    read = {option.name: getattr(settings, option.name) for option in options_in(RayFields)}
    made_of = {name: value for name, value in read.items() if name not in OF_SERVER}
    facts = (tensorwright.__version__, path, sorted(options.items()), made_of, drain_timeout, max_stall_seconds, digest)
    return xxhash.xxh3_64_hexdigest(repr(facts).encode())


def processors(options: Mapping[str, Any], settings: RaySettings) -> float:
    """Returns how many processors a replica reserves. options: keywords of LLM."""
    return float(settings.replica_cpus or options.get("threads") or 1)


def most_requests(options: Mapping[str, Any]) -> int:
    """Returns how many requests a replica may have. options: keywords of LLM."""
    places = most_at_once(options)
    return places + max(1, places // AHEAD)


def most_at_once(options: Mapping[str, Any]) -> int:
    """Returns how many completions a replica runs at once, as far as its options say. options: keywords of LLM."""
    tokens = options.get("max_num_tokens") or DEFAULT_LIMITS["max_num_tokens"]
    return int(options.get("max_batch_size") or min(DEFAULT_LIMITS["max_batch_size"], tokens))


def _number(settings: RaySettings) -> dict[str, Any]:
    """Returns the options of a deployment that say how many replicas it has."""
    if settings.max_replicas is None:
        return {"num_replicas": settings.replicas}
    policy = AutoscalingPolicy(
        policy_function="tensorwright.runtime.serving.ray.scaling:ReplicaCountPolicy",
        policy_kwargs={
            "target": settings.target_pressure,
            "least": settings.replicas,
            "most": settings.max_replicas,
        },
    )
    return {
        "autoscaling_config": AutoscalingConfig(
            min_replicas=settings.replicas,
            max_replicas=settings.max_replicas,
            upscale_delay_s=settings.scale_up_delay,
            downscale_delay_s=settings.scale_down_delay,
            metrics_interval_s=min(STATS_SECONDS, settings.scale_up_delay),
            look_back_period_s=max(3 * STATS_SECONDS, settings.scale_up_delay),
            policy=policy,
        )
    }
