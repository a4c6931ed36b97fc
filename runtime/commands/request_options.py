"""The options of `tensorwright run` that are a request's parameters: each goes to the field of SamplingParams that it
names, which checks it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from tensorwright.runtime.commands.guided_options import guided_options, take_guided
from tensorwright.runtime.commands.option_tables import OptionTable, add_options

if TYPE_CHECKING:
    from tensorwright.runtime.requests.sampling_params import SamplingParams


def _biases(ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> dict[int, float]:
    """TOKEN=BIAS, several times, as {token: bias}."""
    biases: dict[int, float] = {}
    for text in texts:
        token, _, bias = text.partition("=")
        try:
            pair = int(token), float(bias)
        except ValueError:
            must = f"must be TOKEN=BIAS such as 42=-1.5, or 42=-inf to forbid token 42, got {text!r}"
            raise click.BadParameter(must, ctx, param) from None
        if pair[0] in biases:
            raise click.BadParameter(f"token {pair[0]} must have one bias, got several", ctx, param)
        biases[pair[0]] = pair[1]
    return biases


_MODELS = "Default: the model's, or "
OPTIONS: OptionTable = {
    "n": ("-n", {"type": int, "default": 1, "help": "Completions per prompt; several are printed when all are done."}),
    "max_tokens": ("--max-tokens", {"type": int, "default": 64, "help": "Most tokens to generate per prompt."}),
    "min_tokens": ("--min-tokens", {"type": int, "default": 0, "help": "Do not end before so many tokens."}),
    "temperature": ("--temperature", {"type": float, "help": f"0: greedy. {_MODELS}0."}),
    "top_k": ("--top-k", {"type": int, "help": f"Sample among the k likeliest tokens; 0: all. {_MODELS}0."}),
    "top_p": (
        "--top-p",
        {"type": float, "help": f"Sample among the likeliest tokens that reach p together; 1: all. {_MODELS}1."},
    ),
    "min_p": (
        "--min-p",
        {"type": float, "help": f"Sample among tokens p times as likely as the likeliest; 0: all. {_MODELS}0."},
    ),
    "seed": ("--seed", {"type": int, "help": "Makes sampling repeatable."}),
    "repetition_penalty": (
        "--repetition-penalty",
        {"type": float, "help": f"Above 1: tokens of prompt and output are less likely. {_MODELS}1."},
    ),
    "presence_penalty": (
        "--presence-penalty",
        {"type": float, "default": 0.0, "help": "Taken off the logit of each token of the output."},
    ),
    "frequency_penalty": (
        "--frequency-penalty",
        {"type": float, "default": 0.0, "help": "The same, times how often the token occurs in the output."},
    ),
    "logit_bias": (
        "--logit-bias",
        {
            "multiple": True, "callback": _biases, "metavar": "TOKEN=BIAS",
            "help": "Added to the logit of a token id; -inf forbids it. May be repeated.",
        },
    ),
    "bad_words": ("--bad-word", {"multiple": True, "help": "Text that must not be generated. May be repeated."}),
    "stop": ("--stop", {"multiple": True, "help": "Text after which generation ends. May be repeated."}),
    "include_stop_str_in_output": ("--include-stop", {"is_flag": True, "help": "Print the text of --stop too."}),
    "stop_token_ids": (
        "--stop-token-id",
        {"type": int, "multiple": True, "help": "Token id after which generation ends. May be repeated."},
    ),
    "ignore_eos": ("--ignore-eos", {"is_flag": True, "help": "Go on after the end-of-sequence token."}),
    "skip_special_tokens": (
        "--skip-special/--show-special",
        {"default": True, "help": "Leave special tokens out of the text."},
    ),
    "logprobs": (
        "--logprobs",
        {"type": int, "help": "With --json: logprobs of the tokens, and of the k likeliest in each place."},
    ),
    "prompt_logprobs": ("--prompt-logprobs", {"type": int, "help": "With --json: the same of the prompt's tokens."}),
    "truncate_prompt_tokens": ("--truncate-prompt", {"type": int, "help": "Use only the last k tokens of the prompt."}),
    "timeout": ("--timeout", {"type": float, "help": "Seconds after which a prompt's generation ends. Default: none."}),
}  # fmt: skip
"""Field of SamplingParams -> its option, and what click is told of it."""
MODELS_FIELDS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
"""Those whose default a model may have; the length is always the command's own."""


def request_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives the command all OPTIONS, in their order, and those of guided decoding."""
    return add_options(guided_options(command), OPTIONS)


@dataclass(frozen=True)
class AskedParams:
    """params: of a model without defaults, greedy unless --temperature says otherwise. left_out: those of their fields
    that no option set, and that a model may have a default for."""

    params: SamplingParams
    left_out: frozenset[str]

    def over(self, defaults: Mapping[str, Any]) -> SamplingParams:
        """With the model's defaults, LLM.sampling_defaults. If they say how tokens are drawn, tokens are drawn."""
        from tensorwright.runtime.requests.generation_defaults import shapes_distribution

        drawn = {"temperature": 1.0} if shapes_distribution(defaults) else {}
        return replace(
            self.params, **{name: value for name, value in (drawn | {**defaults}).items() if name in self.left_out}
        )


def take_params(options: dict[str, Any]) -> AskedParams:
    """Takes what request_options gave out of `options`."""
    from tensorwright.runtime.requests.sampling_params import SamplingParams

    guided = take_guided(options)
    given = {field: options.pop(field) for field in OPTIONS}
    left_out = frozenset(field for field in MODELS_FIELDS if given[field] is None)
    fields = {"temperature": 0.0} | {field: value for field, value in given.items() if field not in left_out}
    return AskedParams(SamplingParams(guided_decoding=guided, **fields), left_out)
