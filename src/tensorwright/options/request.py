"""Declares the options of `tensorwright run` that are fields of SamplingParams and GuidedDecodingParams.

Those two classes are public, check their values themselves, and have defaults of their own. This file only declares how
the command shows the fields. A test compares the names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorwright.options.declare import At, Door, Option, TextFile, options_in

_MODELS = "[default: the model's, or"


def parse_biases(texts: tuple[str, ...]) -> dict[int, float]:
    """Parses biases: ("42=-1.5", "7=-inf") becomes {42: -1.5, 7: -inf}. Raises ValueError for a wrong text."""
    biases: dict[int, float] = {}
    for text in texts:
        token, _, bias = text.partition("=")
        try:
            pair = int(token), float(bias)
        except ValueError:
            raise ValueError(
                f"must be TOKEN=BIAS such as 42=-1.5, or 42=-inf to forbid token 42, got {text!r}"
            ) from None
        if pair[0] in biases:
            raise ValueError(f"token {pair[0]} must have one bias, got several")
        biases[pair[0]] = pair[1]
    return biases


def parse_breakers(texts: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the texts, or () for the word none alone, as in llama.cpp."""
    return () if texts == ("none",) else texts


EARLY_STOPPING: dict[str, Any] = {"false": False, "true": True, "never": "never"}
"""The values of SamplingParams.early_stopping by the command's words."""


def _of_run(
    name: str,
    kind: type,
    help: str,
    default: Any = None,
    *,
    flag: str = "",
    metavar: str | None = None,
    repeated: bool = False,
    parse: Callable[[Any], Any] | None = None,
    choices: tuple[str, ...] = (),
    section: str = "",
) -> Option:
    shown = {Door.RUN: At(help, flag, metavar=metavar)}
    return Option(
        name, kind, () if repeated and default is None else default, shown, choices, repeated=repeated, parse=parse,
        section=section,
    )  # fmt: skip


SAMPLING = options_in((
    _of_run(
        "n", int, "Completions per prompt; several are printed when all are done.", 1, flag="-n",
        section="Sampling",
    ),
    _of_run("beam_width", int, "Above 1: the completions are the best of a beam search of so many beams.", 1),
    _of_run(
        "length_penalty", float, "A beam's score is its logprob / (its tokens ^ this); above 0 favours long ones.", 1.0
    ),
    _of_run(
        "early_stopping", str, "When a beam search that has as many ended beams is over: true at once, false when the "
        "best of the others scores no better, never when none can come to.", "false", choices=tuple(EARLY_STOPPING),
    ),
    _of_run("max_tokens", int, "The most tokens to generate per prompt.", 64),
    _of_run("min_tokens", int, "The fewest tokens to generate before the text may end.", 0),
    _of_run("temperature", float, f"Temperature of sampling; 0 is greedy. {_MODELS} 0]"),
    _of_run("top_k", int, f"Sample among the k likeliest tokens; 0 is all. {_MODELS} 0]"),
    _of_run("top_p", float, f"Sample among the likeliest tokens that reach p together; 1 is all. {_MODELS} 1]"),
    _of_run("min_p", float, f"Sample among tokens p times as likely as the likeliest; 0 is all. {_MODELS} 0]"),
    _of_run("typical_p", float, "Sample among the most typical tokens that reach p together; 1 is all.", 1.0),
    _of_run(
        "xtc_probability", float, "How often a token is drawn without the likeliest ones, all but the last of those "
        "with --xtc-threshold; 0 is never.", 0.0,
    ),
    _of_run("xtc_threshold", float, "The probability from which on --xtc-probability counts a token.", 0.1),
    _of_run("seed", int, "Seed that makes sampling repeatable. [default: a random one]"),
    _of_run(
        "repetition_penalty", float, f"Penalty; above 1 it makes tokens of prompt and output less likely. {_MODELS} 1]"
    ),
    _of_run("presence_penalty", float, "Number taken off the logit of each token that the output has.", 0.0),
    _of_run("frequency_penalty", float, "Number taken off a token's logit for each time that the output has it.", 0.0),
    _of_run("dry_multiplier", float, "Above 0: penalty of tokens that go on as an earlier text did (DRY).", 0.0),
    _of_run("dry_base", float, "How fast DRY's penalty grows with the length of the repeated text.", 1.75),
    _of_run("dry_allowed_length", int, "The length from which on a repeated text is penalized by DRY, in tokens.", 2),
    _of_run("dry_penalty_last_n", int, "The most tokens that DRY looks back; -1 is all, 0 is off.", -1),
    _of_run(
        "dry_sequence_breakers", str, "Text across which DRY sees no repetition. May be repeated; the word none alone "
        "leaves all out. [default: a line's end, a colon, a double quote and an asterisk]", ("\n", ":", '"', "*"),
        flag="--dry-sequence-breaker", repeated=True, parse=parse_breakers,
    ),
    _of_run("no_repeat_ngram_size", int, "Forbid tokens that complete so many tokens a second time; 0 is off.", 0),
    _of_run(
        "logit_bias", str, "Number added to the logit of a token id; -inf forbids it. May be repeated.",
        metavar="TOKEN=BIAS", repeated=True, parse=parse_biases, section="Tokens and ends",
    ),
    _of_run("bad_words", str, "Text that must not be generated. May be repeated.", flag="--bad-word", repeated=True),
    _of_run("stop", str, "Text after which generation ends. May be repeated.", repeated=True),
    _of_run("include_stop_str_in_output", bool, "Print the text of --stop too.", False, flag="--include-stop"),
    _of_run(
        "stop_token_ids", int, "Token id after which generation ends. May be repeated.", flag="--stop-token-id",
        repeated=True,
    ),
    _of_run("ignore_eos", bool, "Go on after the end-of-sequence token.", False),
    _of_run(
        "skip_special_tokens", bool, "Leave special tokens out of the text.", True, flag="--skip-special/--show-special"
    ),
    _of_run(
        "logprobs", int, "With --json: logprobs of the output's tokens, and of the k likeliest in each place.",
        section="Output",
    ),
    _of_run(
        "prompt_logprobs", int, "With --json: logprobs of the prompt's tokens, and of the k likeliest in each place."
    ),
    _of_run(
        "truncate_prompt_tokens", int, "Use only the last k tokens of the prompt.", flag="--truncate-prompt",
        section="Tokens and ends",
    ),
    _of_run("timeout", float, "Seconds after which a prompt's generation ends. [default: no limit]"),
))  # fmt: skip
"""The options that are fields of SamplingParams."""

GUIDED = options_in((
    _of_run(
        "json", TextFile, "The output is JSON that the schema in FILE admits.", flag="--json-schema",
        section="Guided decoding",
    ),
    _of_run("json_object", bool, "The output is a JSON object.", False),
    _of_run(
        "whitespace_pattern", str, "With JSON: what may stand between its parts, '' for the shortest JSON.",
        metavar="REGEX",
    ),
    _of_run("regex", str, "The output matches this regular expression."),
    _of_run("choice", str, "The output is one of these texts. May be repeated.", repeated=True),
    _of_run("grammar", TextFile, "The output is of the language of FILE, in EBNF (::=) or Lark."),
))  # fmt: skip
"""The options that are fields of GuidedDecodingParams."""
