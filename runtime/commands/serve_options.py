"""The options of `tensorwright serve`, in three groups: of every engine, of the application, of the network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from tensorwright.runtime.commands.option_tables import (
    GENERATION_CONFIG,
    LIMITED,
    DtypeChoice,
    OptionTable,
    add_options,
)
from tensorwright.runtime.guided.reader import TIMES

# Keyword of LLM -> its option.
ENGINE_OPTIONS: OptionTable = {
    "kv_cache_memory": ("--kv-cache-memory", {"help": 'Such as "512MiB". Default: half of the free memory.'}),
    "max_batch_size": (
        "--max-batch-size",
        {"type": int, "help": "Completions that run at once. Default: 64" + LIMITED},
    ),
    "max_num_tokens": ("--max-num-tokens", {"type": int, "help": "Most tokens of one step. Default: 512" + LIMITED}),
    "max_prefill_chunk": ("--max-prefill-chunk", {"type": int, "help": "Most tokens of one prompt in one step."}),
    "max_queue_size": (
        "--max-queue-size",
        {"type": int, "default": 256, "help": "Requests that may wait; one more is answered 429."},
    ),
    "threads": ("--threads", {"type": int, "help": "Default: one per physical core."}),
    "load": ("--load", {"type": click.Choice(["map", "copy"]), "default": "map", "help": "How weights are read."}),
    "enable_prefix_caching": (
        "--prefix-caching/--no-prefix-caching",
        {"default": None, "help": "Default: on, but for engines of target onnx, which cannot."},
    ),
    "guided_vocabulary": (
        "--guided-vocabulary",
        {
            "type": click.Choice(TIMES),
            "default": "eager",
            "help": "When it is read for guided decoding: at the first guided request, or beside the start.",
        },
    ),
    "dtype": (
        "--dtype",
        {"type": DtypeChoice(["auto", "float32", "bfloat16"]), "default": "auto", "help": "Of a model directory."},
    ),
    "quantize": ("--quantize", {"metavar": "SPEC", "help": "Of a model directory: formats of the weights."}),
    "kv_cache_dtype": (
        "--kv-cache-dtype",
        {"type": click.Choice(["auto", "int8"]), "default": "auto", "help": "Of a model directory: its KV cache."},
    ),
    "chat_template": (
        "--chat-template",
        {
            "metavar": "FILE|NAME",
            "help": "Jinja instead of the model's own chat template, or the name of one of the model's.",
        },
    ),
    "generation_config": GENERATION_CONFIG,
}
# Field of ServerOptions -> its option.
APP_OPTIONS: OptionTable = {
    "api_keys": ("--api-key", {"multiple": True, "help": "Clients need one of these as bearer. May be repeated."}),
    "protect_metrics": ("--protect-metrics", {"is_flag": True, "help": "/metrics needs a key, too."}),
    "max_body_size": ("--max-body-size", {"default": "4MiB", "help": "A larger body is answered 413."}),
    "max_body_memory": (
        "--max-body-memory",
        {"help": "Of all bodies at once; one more is answered 503. Default: 16 times --max-body-size."},
    ),
    "body_timeout": ("--body-timeout", {"type": float, "default": 30.0, "help": "Seconds for a body to come."}),
    "request_timeout": ("--request-timeout", {"type": float, "help": "Seconds for a request. Default: no limit."}),
    "cors_origins": (
        "--cors-origin",
        {"multiple": True, "help": 'A web page\'s origin that may call, or "*". May be repeated. Default: none.'},
    ),
    "allowed_hosts": (
        "--allowed-host",
        {
            "multiple": True,
            "help": 'A name by which clients reach the server, or "*". May be repeated. Default on 127.0.0.1: those of '
            "the machine itself; elsewhere any.",
        },
    ),
    "max_requests_per_key": (
        "--max-requests-per-key",
        {
            "type": int,
            "help": "Completions of one key at once; one more is answered 429. Default, with two keys or more: half of "
            "--max-batch-size and --max-queue-size.",
        },
    ),
    "max_requests_per_address": (
        "--max-requests-per-address",
        {"type": int, "help": "The same of one address. Default: no limit."},
    ),
    "retry_after": ("--retry-after", {"type": int, "default": 1, "help": "Seconds, in the header of a 429 or 503."}),
    "max_waiting_jobs": (
        "--max-waiting-jobs",
        {"type": int, "default": 512, "help": "Requests that may wait for each pool of threads, beyond it 429."},
    ),
    "max_job_seconds": (
        "--max-job-seconds",
        {"type": float, "default": 30.0, "help": "A thread that works on one request for longer: /ready says 503."},
    ),
    "max_stall_seconds": (
        "--max-stall-seconds",
        {"type": float, "default": 300.0, "help": "An engine that ends no step for longer: /ready says 503."},
    ),
    "max_priority": ("--max-priority", {"type": int, "default": 0, "help": "Most that a request's priority may be."}),
    "shared_prefixes": (
        "--shared-prefixes",
        {"is_flag": True, "help": "One prefix cache for all keys; without, each key has its own."},
    ),
    "log_prompts": ("--log-prompts", {"is_flag": True, "help": "Bodies of requests go into the log."}),
    "quiet_probes": (
        "--quiet-probes",
        {"is_flag": True, "help": "No lines in the log of /health, /ready and /metrics that were answered with 200."},
    ),
}
# Field of Listen -> its option.
NETWORK_OPTIONS: OptionTable = {
    "host": ("--host", {"default": "127.0.0.1", "help": "0.0.0.0: all networks."}),
    "port": ("--port", {"type": int, "default": 8000, "help": "0: any that is free."}),
    "tls_cert": ("--tls-cert", {"metavar": "FILE", "help": "Certificate chain, PEM. With --tls-key: https."}),
    "tls_key": ("--tls-key", {"metavar": "FILE", "help": "Its key, PEM."}),
    "max_connections": (
        "--max-connections",
        {"type": int, "default": 1024, "help": "With requests under way; one more is answered 503."},
    ),
    "max_connections_per_address": (
        "--max-connections-per-address",
        {"type": int, "help": "The same of one address, answered 429. Default: no limit."},
    ),
    "keep_alive": ("--keep-alive", {"type": float, "default": 65.0, "help": "Seconds for an idle connection."}),
    "header_timeout": ("--header-timeout", {"type": float, "default": 15.0, "help": "Seconds for headers to come."}),
    "client_timeout": (
        "--client-timeout",
        {"type": float, "default": 60.0, "help": "Seconds that a client may take nothing of its answer."},
    ),
    "drain_timeout": (
        "--drain-timeout",
        {"type": float, "default": 30.0, "help": "Seconds for requests to finish after SIGTERM or Ctrl-C."},
    ),
}


def serve_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives the command all three groups, in their order."""
    return add_options(command, {**NETWORK_OPTIONS, **APP_OPTIONS, **ENGINE_OPTIONS})


def take(options: dict[str, Any], group: dict[str, Any]) -> dict[str, Any]:
    """Takes what belongs to the group out of `options`."""
    return {field: options.pop(field) for field in group}
