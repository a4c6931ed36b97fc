"""The command `tensorwright triton-repo`. Imports little before it is called."""

from __future__ import annotations

import os
from typing import Any

import click

from tensorwright.interrupts import nothing_begun
from tensorwright.runtime.commands.option_tables import GENERATION_CONFIG, LIMITED
from tensorwright.runtime.guided.reader import TIMES

_NAMES = ("ensemble", "tensorrt_llm_bls", "tensorrt_llm")
_LLM = (
    "kv_cache_memory", "max_num_tokens", "max_prefill_chunk", "threads", "load", "guided_vocabulary", "max_queue_size",
    "generation_config", "max_priority",
)  # fmt: skip


@click.command("triton-repo")
@click.argument("engine")
@click.argument("repository", metavar="REPO")
@click.option("--name", default="tensorwright", show_default=True, help="The model's name: run once per engine.")
@click.option(
    "--interface",
    type=click.Choice(["both", "text", "tokens", "llmapi"]),
    default="both",
    show_default=True,
    help="Whose tensors: text and token ids, one of them, or those of TensorRT-LLM's LLM-API model.",
)
@click.option(
    "--trtllm-name",
    "trtllm_names",
    type=click.Choice(_NAMES),
    multiple=True,
    help="Also write a model that clients of TensorRT-LLM call by this name, with its tensors. May be repeated.",
)
@click.option("--trtllm-names", "all_names", is_flag=True, help=f"All of them: {', '.join(_NAMES)}.")
@click.option("--backend", type=click.Choice(["python", "tensorwright"]), default="python", show_default=True)
@click.option("--backend-dir", help="With --backend tensorwright: write that backend into this backend directory.")
@click.option("--max-batch-size", type=int, help="Most completions that run at once. Default: 64" + LIMITED)
@click.option("--batch-dim/--no-batch-dim", "batch_dimension", default=True, help="Tensors begin with the batch's.")
@click.option(
    "--decoupled/--no-decoupled",
    default=True,
    help="Stream, several answers to a request; or exactly one, as clients that call infer want it.",
)
@click.option("--relative", is_flag=True, help="Name the engine relative to the model's folder.")
@click.option("--force", is_flag=True, help="Replace models that are there.")
@click.option("--overwrite", "force", is_flag=True, hidden=True, help="The former name of --force.")
@click.option("--exclude-input", is_flag=True, help="Answers leave out the prompt, unless a request says otherwise.")
@click.option(
    "--chat-template",
    metavar="FILE|NAME",
    help='Take text_input for what a user says and put it into this Jinja template; "default": the model\'s own.',
)
@click.option("--kv-cache-memory", help='Such as "512MiB". Default: half of the free memory, or what is useful.')
@click.option("--max-num-tokens", type=int, help="Most tokens of one step.")
@click.option("--max-prefill-chunk", type=int, help="Most tokens of one prompt in one step.")
@click.option("--threads", type=int, help="Default: one per physical core.")
@click.option("--load", type=click.Choice(["map", "copy"]), help="Map the weights, or copy them.")
@click.option(
    "--guided-vocabulary",
    type=click.Choice(TIMES),
    help="When it is read for guided decoding: at the first guided request, or beside the start, the default here.",
)
@click.option("--max-queue-size", type=int, help="Requests that may wait.")
@click.option("--max-priority", type=click.IntRange(min=0), help="Most that a request's priority may be. Default: 0.")
@click.option(
    "--generation-config",
    type=GENERATION_CONFIG[1]["type"],
    help="model: what a request leaves out is as the model's generation_config.json says. Default: TensorRT-LLM's way.",
)
def triton_repo(engine: str, repository: str, **options: Any) -> None:
    """Write a model for Triton Inference Server into REPO that serves ENGINE.

    Every model is a process with an engine of its own; weights are shared through the page cache, KV caches are not.
    """
    with nothing_begun:
        from tensorwright.runtime.serving.triton.repository import RepositoryOptions, write_backend, write_repository

    backend_dir, options["overwrite"] = options.pop("backend_dir"), options.pop("force")
    if backend_dir is not None and options["backend"] != "tensorwright":
        raise click.UsageError("--backend-dir needs --backend tensorwright")
    if options.pop("all_names"):
        options["trtllm_names"] = _NAMES
    parameters = {name: str(value) for name in _LLM if (value := options.pop(name)) is not None}
    if options.pop("exclude_input"):
        parameters["exclude_input_in_output"] = "true"
    template = options.pop("chat_template")
    if template is not None:
        from tensorwright.runtime.text.chat_template import is_name, read_argument  # imports Jinja

        read_argument(template, "--chat-template")  # or refuses it
        parameters["chat_template"] = template if is_name(template) else os.path.abspath(template)
    for folder in write_repository(engine, repository, RepositoryOptions(**options, parameters=parameters)):
        click.echo(f"wrote {folder}")
    if backend_dir is not None:
        click.echo(f"wrote {write_backend(backend_dir, options['overwrite'])}")
