"""Declares the `tensorwright` command. A subcommand imports all packages but click when it runs.

It has more than 500 lines because each subcommand is a function here, with its help text and its options.
"""

from __future__ import annotations

from typing import Any

import click
from click.shell_completion import get_completion_class

import tensorwright
from tensorwright.click_command import CommandGroup
from tensorwright.click_options import add_options
from tensorwright.command import run_command
from tensorwright.interrupts import nothing_begun
from tensorwright.options.bench import LoadFields, LoadTestFields
from tensorwright.options.build import BuildFields, SourceFields
from tensorwright.options.build_choices import BuildChoices
from tensorwright.options.chat import CHAT_SAMPLING
from tensorwright.options.chat import CHAT_TEMPLATE as TEMPLATE_OF_A_CHAT
from tensorwright.options.declare import Door, find, options_in
from tensorwright.options.engine import EngineFields
from tensorwright.options.estimate import HERE, EstimateFields
from tensorwright.options.ray import RayFields
from tensorwright.options.server import NetworkFields, ServerFields
from tensorwright.options.simulate import FleetFields, GoalFields, TrafficFields
from tensorwright.options.transfer import RouterFields, TransferFields
from tensorwright.runtime.commands.bench_serve import bench_serve
from tensorwright.runtime.commands.request_options import request_options, take_params
from tensorwright.runtime.commands.triton_repo import triton_repo

CHAT_TEMPLATE = (find(EngineFields, "chat_template"),)
BESIDE_TEMPLATE = tuple(option for option in options_in(EngineFields) if option not in CHAT_TEMPLATE)
PROGRAMS = ("tensorwright", "build-engine")
SHELLS = ("bash", "zsh", "fish")
LOG_LEVEL: dict[str, Any] = {
    "type": click.Choice(["debug", "info", "warning", "error", "critical"]),
    "default": "info",
    "show_default": True,
    "help": "Level of the lines of JSON on stderr; info writes one for each request.",
}


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(tensorwright.__version__, prog_name="tensorwright")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def cli(debug: bool) -> None:
    """Run engines, look into them, build them."""


@cli.command()
@click.argument("engine")
@click.option(
    "--prompt", "prompts", multiple=True, required=True,
    help="Text to continue; '-' reads it from stdin, without its last newline.",
)  # fmt: skip
@click.option("--chat", is_flag=True, help="A prompt is what the user says, put into the model's chat template.")
@click.option("--system", help="With --chat: the system's message before it.")
@add_options(Door.RUN, CHAT_TEMPLATE)
@request_options
@click.option("--stream/--no-stream", default=True, show_default=True, help="Print text as it comes.")
@click.option("--echo", is_flag=True, help="Print the prompt before its continuation.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per prompt instead of text.")
@click.option("--stats", is_flag=True, help="Times and tokens per second on stderr.")
@add_options(Door.RUN, BESIDE_TEMPLATE, BuildChoices, SourceFields)
@click.option("--profile", is_flag=True, help="On stderr: time, bytes and operations by op and module, and rooflines.")
@click.option("--profile-svg", metavar="FILE", help="Draw the profile into FILE, an SVG picture. Implies --profile.")
def run(**options: Any) -> None:
    """Generate text with ENGINE. A model (a directory or a hub name) is built into an engine on its first use."""
    with nothing_begun:
        from tensorwright.runtime.commands.run import Printing, run_prompts

    for option, name in (("--system", "system"), ("--chat-template", "chat_template")):
        if options[name] is not None and not options["chat"]:
            raise click.UsageError(f"{option} needs --chat")
    asked = take_params(options)
    for option, count in (("--logprobs", asked.params.logprobs), ("--prompt-logprobs", asked.params.prompt_logprobs)):
        if count is not None and not options["as_json"]:
            raise click.UsageError(f"{option} needs --json, which prints them")
    profiler, profile, picture = None, options.pop("profile"), options.pop("profile_svg")
    if profile or picture is not None:
        with nothing_begun:
            from tensorwright.runtime.commands.run_profile import start_profiler

        profiler = start_profiler(options["threads"], picture)
    printing = Printing(**{name: options.pop(name) for name in ("stream", "echo", "as_json", "stats")})
    run_prompts(asked=asked, printing=printing, profiler=profiler, **options)


@cli.command()
@click.argument("engine")
@click.option("--system", help="What the system says before the conversation.")
@click.option("--load", metavar="FILE", help="Go on with a conversation that /save wrote.")
@click.option(
    "--history/--no-history", "keep_history", default=True, show_default=True,
    help="Keep what you type for the arrow keys of later chats.",
)  # fmt: skip
@click.option(
    "--think", "effort", metavar="EFFORT",
    help="How much the model thinks: none, minimal, low, medium, high, xhigh or max. [default: the model's]",
)  # fmt: skip
@add_options(Door.RUN, TEMPLATE_OF_A_CHAT, CHAT_SAMPLING, BESIDE_TEMPLATE, BuildChoices, SourceFields)
def chat(**options: Any) -> None:
    """Talk with ENGINE in the terminal. A model (a directory or a hub name) is built into an engine on its first use.

    Answers come as they are drawn; Ctrl-C stops one. Lines that begin with a slash are for the program, /help shows
    them: /system, /set, /regen, /undo, /save and others. Three double quotes begin and end a text of several lines.
    Where the input is no terminal, each line is a question, and only answers are printed.
    """
    with nothing_begun:
        from tensorwright.runtime.commands.chat.command import chat as talk

    talk(**options)


@cli.command()
@click.argument("engines", metavar="ENGINE...", nargs=-1, required=True)
@add_options(
    Door.SERVE, NetworkFields, ServerFields, TransferFields, RayFields, EngineFields, BuildChoices, SourceFields
)
@click.option("--api-key-file", metavar="FILE", help="Keys, one per line; unlike --api-key not seen in process lists.")
@click.option("--allow-no-tokenizer", is_flag=True, help="Serve an engine that can answer no request for lack of one.")
@click.option("--log-level", **LOG_LEVEL)
def serve(
    engines: tuple[str, ...], api_key_file: str | None, allow_no_tokenizer: bool, log_level: str, **options: Any
) -> None:
    """Serve ENGINEs behind OpenAI's API. Each is PATH or NAME=PATH; clients call it by its name.

    PATH may be a model too: a directory or a hub name, of which an engine is built on first use.

    SIGTERM or Ctrl-C refuses new requests, lets those under way finish, and exits; a second one exits at once. With
    --ray, SIGHUP replaces the replicas of every ENGINE whose path now leads to another engine.
    """
    with nothing_begun:
        from tensorwright.runtime.commands.serve import serve_engines

    serve_engines(engines, api_key_file, allow_no_tokenizer, log_level, options)


@cli.command()
@add_options(Door.ROUTE, RouterFields, NetworkFields, ServerFields)
@click.option("--log-level", **LOG_LEVEL)
def route(log_level: str, **options: Any) -> None:
    """Route requests of OpenAI's API to engines that prefill and engines that decode.

    Each engine is a `tensorwright serve` with --role and the same --transfer-token-file; all serve the same engine. A
    prompt is computed by one of --prefill, and its prefix goes to the one of --decode that answers. If that fails, the
    engine that answers computes the prompt itself.
    """
    with nothing_begun:
        from tensorwright.runtime.commands.route import route_requests

    route_requests(log_level, options)


@cli.command()
@click.argument("engine")
@click.option("--json", "as_json", is_flag=True, help="Everything as one JSON object.")
@click.option("--graph", is_flag=True, help="The graph's text instead.")
@click.option("--quantize-config", is_flag=True, help="The weights' formats, as a file for --quantize-config, instead.")
def inspect(engine: str, as_json: bool, graph: bool, quantize_config: bool) -> None:
    """Show what ENGINE is: model, passes and counts, sizes, accuracy record, kernels taken on this machine."""
    with nothing_begun:
        import json

        from rich.console import Console

        from tensorwright.engine_format.file_names import GRAPH
        from tensorwright.runtime.engine.engine_dir import open_engine
        from tensorwright.runtime.tools import inspect as inspecting

    opened = open_engine(engine)
    if quantize_config:
        click.echo(inspecting.quantize_config(opened), nl=False)
    elif graph:
        click.echo(opened.file(GRAPH).read_text(encoding="utf-8"), nl=False)
    elif as_json:
        click.echo(json.dumps(inspecting.describe(opened), indent=2))
    else:
        inspecting.show(inspecting.describe(opened), Console(highlight=False))


@cli.command()
@click.argument("model", required=False)
@add_options(Door.ESTIMATE, EstimateFields, LoadTestFields, BuildFields)
@click.option("--list-devices", "lists", is_flag=True, help="Show the table of devices instead; no MODEL is needed.")
@click.option("--json", "as_json", is_flag=True, help="Everything as one JSON object.")
def estimate(model: str | None, lists: bool, as_json: bool, **options: Any) -> None:
    """Estimate memory and speed of MODEL on a device, without its weights: does it fit, and how fast is it there?

    MODEL is a checkpoint directory, a GGUF file, a hub name (its config alone is downloaded), a config.json under any
    name, or an engine of target cpu.
    """
    with nothing_begun:
        from tensorwright.insight.estimate.command import list_devices, run_estimate

    if lists:
        list_devices(as_json)
    elif model is None:
        raise click.MissingParameter(param_hint="MODEL", param_type="argument")
    else:
        run_estimate(model, as_json, options)


@cli.command()
@click.argument("model", required=False)
@add_options(Door.SIMULATE, FleetFields, TrafficFields, GoalFields, EngineFields, BuildFields)
@click.option("--find-replicas", is_flag=True, help="Find how many replicas meet the goals, in place of --replicas.")
@click.option(
    "--measure-seconds", type=float, default=10.0, show_default=True,
    help="About how long the steps of an engine are measured here.",
)  # fmt: skip
@click.option("--save-costs", metavar="FILE", help="Write what a replica is and what its steps cost, for --costs.")
@click.option("--json", "as_json", is_flag=True, help="Everything as one JSON object.")
def simulate(
    model: str | None,
    find_replicas: bool,
    measure_seconds: float,
    save_costs: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Simulate replicas of MODEL under a load: goodput, latencies, queue, prefix hits; or find how many it takes.

    MODEL is an engine, whose steps are measured on this machine or predicted for another device, or a model as in
    `tensorwright estimate`. The real scheduler runs on a virtual clock; nothing is computed.
    """
    with nothing_begun:
        from tensorwright.insight.simulate.command import run_simulate

    run_simulate(model, find_replicas, measure_seconds, save_costs, as_json, options)


@cli.command()
@click.argument("engine")
@click.option(
    "--device", default=HERE, show_default=True, metavar="NAME",
    help="What worths are predicted on: this machine, a device of `tensorwright estimate --list-devices`, or a file.",
)  # fmt: skip
@click.option(
    "--measure", is_flag=True, help="Switch off what can be switched off here, and measure what it was worth."
)
@click.option("--json", "as_json", is_flag=True, help="Everything as one JSON object.")
def explain(engine: str, device: str, measure: bool, as_json: bool) -> None:
    """Show every known optimization: done in ENGINE or not, why, and what it is worth; and what to do next."""
    with nothing_begun:
        from tensorwright.insight.explain.command import run_explain

    run_explain(engine, device, measure, as_json)


@cli.command()
@click.argument("a")
@click.argument("b")
@click.option("--measure", is_flag=True, help="Run steps of both in turns; otherwise their speed is predicted.")
@click.option("--json", "as_json", is_flag=True, help="Everything as one JSON object.")
def diff(a: str, b: str, measure: bool, as_json: bool) -> None:
    """Show what differs between engines A and B: graphs, formats, accuracy, sizes, memory, passes, kernels, speed."""
    with nothing_begun:
        from tensorwright.insight.diff.command import run_diff

    run_diff(a, b, measure, as_json)


@cli.command()
@click.argument("engine")
@click.option(
    "-o", "--out", required=True, metavar="FILE", help="The page, one HTML file that needs nothing from outside."
)
@click.option(
    "--model",
    metavar="MODEL",
    help="The checkpoint or config that ENGINE was built from: adds its graph before the passes.",
)
@click.option(
    "--run/--no-run", "runs", default=True, show_default=True, help="Run some requests, for timeline and roofline."
)
def report(engine: str, out: str, model: str | None, runs: bool) -> None:
    """Write a page that shows ENGINE: graph, passes, memory, roofline, accuracy, formats, a run, and what is next."""
    with nothing_begun:
        from tensorwright.insight.report.command import write_report

    write_report(engine, out, model, runs)


@cli.command("convert-heads")
@click.argument("model")
@click.argument("out")
@click.option("--kv-heads", type=int, required=True, help="Heads of K and V in each layer; 1 is one for all of q.")
@click.option(
    "--text", metavar="FILE", help="UTF-8 text that perplexity is measured on. [default: a text of this package]"
)
@click.option("--measure/--no-measure", default=True, show_default=True, help="Measure perplexity before and after.")
@click.option("--json", "as_json", is_flag=True, help="Everything as one JSON object.")
def convert_heads(model: str, out: str, kv_heads: int, text: str | None, measure: bool, as_json: bool) -> None:
    """Write MODEL, a checkpoint, to OUT with fewer heads of K and V, each the mean of several (MHA -> GQA).

    The result is a start for training, and not a model to serve. Its KV cache is as many times as small.
    """
    with nothing_begun:
        from tensorwright.insight.convert_heads.command import run_convert_heads

    run_convert_heads(model, out, kv_heads, text, measure, as_json)


@cli.command("merge-lora")
@click.argument("model")
@click.argument("adapter")
@click.argument("out")
@click.option("--json", "as_json", is_flag=True, help="The result as one JSON object.")
def merge_lora(model: str, adapter: str, out: str, as_json: bool) -> None:
    """Write MODEL, a checkpoint, to OUT with the LoRA adapter of the folder ADAPTER merged into its weights."""
    with nothing_begun:
        from tensorwright.builder.merge_lora_cli import run_merge_lora

    run_merge_lora(model, adapter, out, as_json)


@cli.command("c-interface")
@click.option("--cflags", is_flag=True, help="Flags for compilers of C and C++: where the headers are.")
@click.option("--libs", is_flag=True, help="Flags for linkers: the library, and where it is, also when programs run.")
@click.option("--cmake-dir", is_flag=True, help="The folder of the CMake package, for -Dtensorwright_DIR=.")
@click.option("--pkgconfig-dir", is_flag=True, help="The folder for PKG_CONFIG_PATH.")
def c_interface(**asked: bool) -> None:
    """Print what builds need to compile and link programs of C and C++ that run engines (tensorwright.h)."""
    with nothing_begun:
        from tensorwright.runtime.commands.c_interface import print_places

    print_places(asked)


@cli.command("eval")
@click.argument("engine")
@click.argument("files", metavar="[FILE...]", nargs=-1, type=click.Path(exists=True, dir_okay=False))
@click.option(
    "--tasks",
    multiple=True,
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
    help="Answer multiple-choice questions instead: JSON lines of context, choices, answer. May be repeated.",
)
@click.option("--window", type=int, help="Tokens that the engine sees at a time of a text FILE.  [default: 512]")
@add_options(Door.EVAL, EngineFields, BuildChoices, SourceFields)
@click.option("--json", "as_json", is_flag=True, help="Everything as one JSON object.")
def evaluate(
    engine: str,
    files: tuple[str, ...],
    tasks: tuple[str, ...],
    window: int | None,
    threads: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Perplexity of text FILEs by ENGINE itself, or by the engine of a model, each and in total; or answers to --tasks.

    A file is tokenized whole, with the special tokens that the tokenizer adds (a first <s>, if it does), and cut into
    windows side by side. The first token of a window is not scored.

    A line of tasks is {"context": TEXT, "choices": [TEXT, ...], "answer": NUMBER}, with numbers from 0. Shown is how
    often the likeliest choice is the answer, by its log-likelihood after the context (acc), by that over its characters
    (acc_norm), and over its bytes (acc_bytes).
    """
    if bool(files) == bool(tasks):
        raise click.UsageError("give text FILEs, or --tasks, and not both")
    if tasks and window is not None:
        raise click.UsageError("--window is for text FILEs, and has no meaning with --tasks")
    with nothing_begun:
        from tensorwright.runtime.commands.eval import evaluate as evaluate_files
        from tensorwright.runtime.commands.eval_tasks import evaluate_tasks

    if tasks:
        evaluate_tasks(engine, tasks, threads, as_json, options)
    else:
        evaluate_files(engine, files, 512 if window is None else window, threads, as_json, options)


@cli.command()
@click.argument("engine")
@click.option(
    "--seconds", type=float, default=30.0, show_default=True, help="About how long; a slow model takes longer."
)
@click.option("--clear", is_flag=True, help="Forget what was found on this machine instead.")
@click.option("--json", "as_json", is_flag=True, help="What was found as one JSON object.")
def tune(engine: str, seconds: float, clear: bool, as_json: bool) -> None:
    """Measure which number of threads and which sizes of tasks make ENGINE fastest on this machine.

    What is better than the defaults is kept in ENGINE/tuning.json, and is the default from then on, on machines like
    this one. Nothing else should run meanwhile. No token depends on it.
    """
    with nothing_begun:
        from tensorwright.runtime.commands.tune import tune_engine

    tune_engine(engine, seconds, clear, as_json)


@cli.group()
def bench() -> None:
    """How fast an engine or a server is with made-up requests."""


bench.add_command(bench_serve)


@bench.command()
@click.argument("engine")
@add_options(Door.BENCH, LoadFields, EngineFields, BuildChoices, SourceFields)
@click.option("--json", "as_json", is_flag=True, help="Everything as one JSON object.")
def latency(engine: str, as_json: bool, **options: Any) -> None:
    """Time to the first token, per output token and between tokens, of batches one after the other."""
    with nothing_begun:
        from tensorwright.runtime.commands.bench import bench_latency

    bench_latency(engine, as_json, options)


@bench.command()
@click.argument("engine")
@add_options(Door.BENCH, LoadFields, EngineFields, BuildChoices, SourceFields, batch_size=16, requests=64)
@click.option(
    "--repeats",
    type=int,
    default=3,
    show_default=True,
    help="Rounds that are measured; the rates are percentiles over them.",
)
@click.option("--json", "as_json", is_flag=True, help="Everything as one JSON object.")
def throughput(engine: str, repeats: int, as_json: bool, **options: Any) -> None:
    """Requests and tokens per second, all requests submitted at once."""
    with nothing_begun:
        from tensorwright.runtime.commands.bench import bench_throughput

    bench_throughput(engine, repeats, as_json, options)


@cli.group()
def cache() -> None:
    """The engines that were built from model directories on first use.

    After a build the longest unused are removed until $TENSORWRIGHT_CACHE_SIZE is kept (50GiB), but none that runs.
    """


@cache.command("list")
@click.option("--json", "as_json", is_flag=True, help="Everything as one JSON object.")
def list_engines(as_json: bool) -> None:
    """Show every engine of the cache, the longest unused first."""
    with nothing_begun:
        from tensorwright.runtime.commands.cache import list_cache

    list_cache(as_json)


@cache.command("clear")
@click.argument("keys", metavar="[KEY]...", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="What was removed as one JSON object.")
def clear_engines(keys: tuple[str, ...], as_json: bool) -> None:
    """Remove the engines with these KEYs (or beginnings of them), or all; never one that a process uses."""
    with nothing_begun:
        from tensorwright.runtime.commands.cache import clear_cache

    clear_cache(keys, as_json)


def _builder() -> click.Command:
    with nothing_begun:
        from tensorwright.runtime.api.model_cache import require_build_extra

    require_build_extra("building an engine")
    with nothing_begun:
        from tensorwright.builder.cli import build_engine

    return build_engine


def _rebuilder() -> click.Command:
    with nothing_begun:
        from tensorwright.builder.rebuild_cli import rebuild_engine

    return rebuild_engine


cli.add_loaded("build", "Build an engine from a model; the same as build-engine.", _builder)
cli.add_loaded("rebuild", "Build an engine again, for another target or with other options.", _rebuilder)


@cli.command()
@click.argument("engine", required=False)
@click.option("--json", "as_json", is_flag=True, help="Everything as one JSON object.")
@click.option(
    "--report",
    is_flag=True,
    help="JSON to send with a question: also the environment, what installed TensorRT packages lack, and a short run.",
)
def doctor(engine: str | None, as_json: bool, report: bool) -> None:
    """Show what this machine has, and whether ENGINE can run here; where not, what to do.

    Packages and versions, driver, GPUs, instruction sets. Exits with 1 if ENGINE cannot run here.
    """
    with nothing_begun:
        from tensorwright.runtime.commands.doctor import examine

    examine(engine, as_json, report)


cli.add_command(triton_repo)


@cli.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the script by which SHELL completes tensorwright and build-engine when Tab is pressed.

    \b
    bash:  echo 'eval "$(tensorwright completion bash)"' >> ~/.bashrc
    zsh:   echo 'eval "$(tensorwright completion zsh)"' >> ~/.zshrc
    fish:  tensorwright completion fish > ~/.config/fish/completions/tensorwright.fish
    """
    completer = get_completion_class(shell)
    assert completer is not None
    for program in PROGRAMS:
        variable = f"_{program.replace('-', '_')}_COMPLETE".upper()  # click looks for this name
        click.echo(completer(cli, {}, program, variable).source())


def main(arguments: list[str] | None = None) -> None:
    """Runs the command and exits; `src/tensorwright/command.py` has the exit codes and the form of an error."""
    run_command(cli, arguments, "tensorwright")


if __name__ == "__main__":
    main()
