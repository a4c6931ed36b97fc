"""Runs `tensorwright run`, which generates text from prompts and prints it as it comes."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, TextIO

import click

from tensorwright.click_options import take
from tensorwright.errors import InvalidOptionError
from tensorwright.options.build_choices import BuildChoices
from tensorwright.options.declare import Door
from tensorwright.runtime.api.llm import LLM
from tensorwright.runtime.api.open_model import find_model
from tensorwright.runtime.commands.first_use import tell_of_build
from tensorwright.runtime.commands.one_adapter import adapter_of
from tensorwright.runtime.commands.request_options import AskedParams
from tensorwright.runtime.requests.outputs import CompletionOutput, Logprob, RequestOutput
from tensorwright.runtime.requests.prompts import RenderedPrompt
from tensorwright.runtime.requests.request_handle import RequestHandle
from tensorwright.runtime.requests.request_news import RequestNews

if TYPE_CHECKING:
    from tensorwright.runtime.commands.run_profile import Profiler


@dataclass(frozen=True)
class Printing:
    """How outputs are printed. stats: whether times and rates go to standard error."""

    stream: bool
    echo: bool
    as_json: bool
    stats: bool


def run_prompts(
    engine: str,
    prompts: tuple[str, ...],
    asked: AskedParams,
    printing: Printing,
    *,
    chat: bool,
    system: str | None,
    profiler: Profiler | None,
    **options: Any,
) -> None:
    """Runs all prompts at once, and prints their texts one after the other, in order. cli.run documents the options.

    options: the keywords of LLM, and the options of the build.
    """
    if options["chat_template"] is not None:
        from tensorwright.runtime.text.chat_template import read_argument  # imports Jinja

        options["chat_template"] = read_argument(options["chat_template"], "--chat-template")
    adapter = adapter_of(options)
    texts = [_read_prompt() if prompt == "-" else prompt for prompt in prompts]
    choices = BuildChoices(**take(options, Door.RUN, BuildChoices))
    path = find_model(engine, options.pop("revision"))
    tell_of_build(path, choices)
    with LLM(path, **options, **vars(choices)) as llm:
        params = replace(asked.over(llm.sampling_defaults), **adapter)
        begin = time.perf_counter()
        if profiler is not None:
            llm.profile(True)
        given = [_conversation(llm, text, system) for text in texts] if chat else texts
        handles = [llm.generate_async(prompt, params) for prompt in given]
        outputs = _print_all(texts, handles, replace(printing, stream=printing.stream and params.n == 1))
        if printing.stats:
            _print_stats(outputs, time.perf_counter() - begin)
        if profiler is not None:
            profiler.finish(llm, printing.as_json)


def _print_all(texts: list[str], handles: list[RequestHandle], printing: Printing) -> list[RequestOutput]:
    """Prints each output as soon as those before it are printed."""
    outputs = []
    for text, handle in zip(texts, handles, strict=True):
        if len(texts) > 1 and not printing.as_json:
            click.echo(f"==> {text!r} <==")
        before = text if printing.echo else ""
        outputs.append(_print_json(handle) if printing.as_json else _print(handle, before, printing.stream))
    return outputs


def _read_prompt() -> str:
    """Reads standard input without its last newline, which `echo` adds. After a newline, the model would begin a new
    line."""
    return _read(sys.stdin, "--prompt -").removesuffix("\n")


def _read(file: TextIO, option: str) -> str:
    try:
        return file.read()
    except UnicodeDecodeError as error:
        raise InvalidOptionError(f"{option} must be UTF-8 text: {error}") from error


def _conversation(llm: LLM, text: str, system: str | None) -> RenderedPrompt:
    from tensorwright.runtime.api.chat import chat_prompt  # imports Jinja, which prompts without chat do not need

    messages = [] if system is None else [{"role": "system", "content": system}]
    messages.append({"role": "user", "content": text})
    return chat_prompt(llm.engine, messages, llm.chat_template, True, {})


def _print_json(handle: RequestHandle) -> RequestOutput:
    output = handle.result()
    click.echo(json.dumps(_as_dict(output)))
    return output


def _print(handle: RequestHandle, before: str, stream: bool) -> RequestOutput:
    """Prints the completions of a request. before: the text to print before each completion."""
    if stream:
        click.echo(before, nl=False)
        return _print_stream(handle)
    output = handle.result()
    for number, completion in enumerate(output.outputs, start=1):
        if len(output.outputs) > 1:
            click.echo(f"--> {number} of {len(output.outputs)} <--")
        click.echo(before + completion.text)
    return output


def _print_stream(handle: RequestHandle) -> RequestOutput:
    for news in RequestNews(handle):
        click.echo(news.outputs[0].text, nl=False)  # click.echo flushes.
    click.echo()
    return handle.result()


def _as_dict(output: RequestOutput) -> dict[str, Any]:
    """Returns the whole output for --json. The text and tokens of the first completion stand at the top level."""
    completions = [_completion_as_dict(completion) for completion in output.outputs]
    metrics = {name: value for name, value in asdict(output.metrics).items() if name != "inter_token_times"}
    result = {
        "prompt": output.prompt,
        "prompt_tokens": len(output.prompt_token_ids),
        **completions[0],
        "metrics": metrics,
    }
    if len(completions) > 1:
        result["completions"] = completions
    if output.prompt_logprobs is not None:
        result["prompt_logprobs"] = [table and _as_rows(table) for table in output.prompt_logprobs]
    return result


def _completion_as_dict(completion: CompletionOutput) -> dict[str, Any]:
    result: dict[str, Any] = {
        name: getattr(completion, name) for name in ("text", "token_ids", "finish_reason", "stop_reason")
    }
    if completion.logprobs is not None:
        result["logprobs"] = [_as_rows(table) for table in completion.logprobs]
    return result


def _as_rows(table: dict[int, Logprob]) -> list[dict[str, Any]]:
    """Returns a table of logprobs as a list, the token of the text first, for a JSON object has no integer keys."""
    return [{"token_id": token, **asdict(entry)} for token, entry in table.items()]


def _print_stats(outputs: list[RequestOutput], seconds: float) -> None:
    prompt = sum(len(output.prompt_token_ids) for output in outputs)
    made = sum(len(completion.token_ids) for output in outputs for completion in output.outputs)
    line = f"{prompt} prompt tokens, {made} generated in {seconds:.2f} s: {made / seconds:.1f} tokens/s"
    first = [t for output in outputs if (t := output.metrics.time_to_first_token) is not None]
    each = [t for output in outputs if (t := output.metrics.time_per_output_token) is not None]
    if first:
        line += f"; first token after {max(first) * 1e3:.0f} ms"
    if each:
        line += f", then one every {sum(each) / len(each) * 1e3:.1f} ms"
    proposed = sum(output.metrics.draft_tokens for output in outputs)
    if proposed:
        right = sum(output.metrics.accepted_tokens for output in outputs)
        line += f"; {right} of {proposed} proposed tokens were right"
    click.echo(line, err=True)
