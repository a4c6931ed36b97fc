"""The `tensorwright` command. Everything but click is imported by the subcommand that needs it."""

from __future__ import annotations

import os
import sys
import traceback
from typing import Any

import click

import tensorwright
from tensorwright.errors import TensorwrightError
from tensorwright.runtime.request_options import request_options, take_params

EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130  # as a shell reports a process that SIGINT ended


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(tensorwright.__version__, prog_name="tensorwright")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def cli(debug: bool) -> None:
    """Run engines, look into them, build them."""


@cli.command()
@click.argument("engine", type=click.Path())
@click.option("--prompt", "prompts", multiple=True, required=True, help="Text to continue; '-' reads it from stdin.")
@click.option("--chat", is_flag=True, help="A prompt is what the user says, put into the model's chat template.")
@click.option("--system", help="With --chat: the system's message before it.")
@click.option("--chat-template", type=click.File(encoding="utf-8"), help="With --chat: Jinja instead of the model's.")
@request_options
@click.option("--stream/--no-stream", default=True, show_default=True, help="Print text as it comes.")
@click.option("--echo", is_flag=True, help="Print the prompt before its continuation.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per prompt instead of text.")
@click.option("--stats", is_flag=True, help="Times and tokens per second on stderr.")
@click.option("--threads", type=int, help="Default: one per physical core.")
@click.option("--kv-cache-memory", help='Such as "512MiB". Default: half of the free memory, or what is useful.')
def run(**options: Any) -> None:
    """Generate text with ENGINE (or with a model directory, which is built on first use)."""
    from tensorwright.runtime.run_command import run_prompts

    for option, name in (("--system", "system"), ("--chat-template", "chat_template")):
        if options[name] is not None and not options["chat"]:
            raise click.UsageError(f"{option} needs --chat")
    params = take_params(options)
    for option, count in (("--logprobs", params.logprobs), ("--prompt-logprobs", params.prompt_logprobs)):
        if count is not None and not options["as_json"]:
            raise click.UsageError(f"{option} needs --json, which prints them")
    run_prompts(params=params, **options)


@cli.command()
@click.argument("engine", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Everything as one JSON object.")
@click.option("--graph", is_flag=True, help="The graph's text instead.")
def inspect(engine: str, as_json: bool, graph: bool) -> None:
    """Show what ENGINE is: model, passes and counts, sizes, accuracy record, kernels taken on this machine."""
    import json

    from rich.console import Console

    from tensorwright.runtime.engine_dir import open_engine
    from tensorwright.runtime.inspect import describe, show

    opened = open_engine(engine)
    if graph:
        click.echo(opened.file("graph.txt").read_text(encoding="utf-8"), nl=False)
    elif as_json:
        click.echo(json.dumps(describe(opened), indent=2))
    else:
        show(describe(opened), Console(highlight=False))


@cli.command(
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def build(arguments: tuple[str, ...]) -> None:
    """Build an engine from a model; the same as build-engine (see build-engine --help)."""
    from tensorwright.runtime.model_cache import require_build_extra

    require_build_extra("building an engine")
    from tensorwright.builder.cli import main as build_main

    build_main.main(args=list(arguments), prog_name="tensorwright build")


def main(arguments: list[str] | None = None) -> None:
    """Runs the command and exits: 0, 2 for a user's error told in one line, 130 when interrupted."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        sys.exit(cli.main(args=arguments, prog_name="tensorwright", standalone_mode=False) or 0)
    except click.exceptions.NoArgsIsHelpError as help_text:
        click.echo(help_text.format_message(), err=True)
        sys.exit(EXIT_USER_ERROR)
    except (TensorwrightError, click.ClickException, OSError) as error:
        _report(error, debug="--debug" in arguments)
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        sys.exit(EXIT_INTERRUPTED)


def _report(error: Exception, debug: bool) -> None:
    if isinstance(error, BrokenPipeError):
        # Whoever read our output has seen enough. Python would fail again when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    if debug:
        traceback.print_exc()
    message = error.format_message() if isinstance(error, click.ClickException) else str(error)
    click.echo(f"error: {' '.join(message.split())}", err=True)
    sys.exit(EXIT_USER_ERROR)


if __name__ == "__main__":
    main()
