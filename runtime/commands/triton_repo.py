"""Declares the command `tensorwright triton-repo`. The module imports little until the command runs."""

from __future__ import annotations

import os
from typing import Any

import click

from tensorwright.click_command import SectionedCommand
from tensorwright.click_options import add_options, take
from tensorwright.interrupts import nothing_begun
from tensorwright.options.declare import Door
from tensorwright.options.engine import EngineFields
from tensorwright.options.triton import TRTLLM_NAMES, ModelFields, RepositoryFields


@click.command("triton-repo", cls=SectionedCommand)
@click.argument("engine")
@click.argument("repository", metavar="REPO")
@add_options(Door.TRITON_REPO, RepositoryFields)
@click.option(
    "--trtllm-names", "all_names", is_flag=True, help=f"Write models of all these names: {', '.join(TRTLLM_NAMES)}."
)
@click.option("--backend-dir", help="With --backend tensorwright: write that backend into this backend directory.")
@click.option("--force", is_flag=True, help="Replace models that are there.")
@click.option("--overwrite", "force", is_flag=True, hidden=True, help="The former name of --force.")
@add_options(Door.TRITON_REPO, ModelFields, EngineFields)
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
        options["trtllm_names"] = tuple(TRTLLM_NAMES)
    asked = take(options, Door.TRITON_REPO, ModelFields, EngineFields)
    options |= {name: asked.pop(name) for name in ("interface", "max_batch_size")}  # not parameters
    if asked.pop("exclude_input_in_output"):
        asked["exclude_input_in_output"] = "true"
    template = asked.pop("chat_template")
    parameters = {name: str(value) for name, value in asked.items() if value is not None}
    if template is not None:
        from tensorwright.runtime.text.chat_template import is_name, read_argument  # imports Jinja

        read_argument(template, "--chat-template")  # This raises if the template cannot be used.
        parameters["chat_template"] = template if is_name(template) else os.path.abspath(template)
    for folder in write_repository(engine, repository, RepositoryOptions(**options, parameters=parameters)):
        click.echo(f"wrote {folder}")
    if backend_dir is not None:
        click.echo(f"wrote {write_backend(backend_dir, options['overwrite'])}")
