"""Writes the C++ table of what Python declares and the C interface takes: parameters, options, file names, units.

python -m tensorwright.runtime.c_interface.declarations     writes runtime/c_interface/declarations.h; run it after a
                                                            change of SamplingParams or of the options of engines
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tensorwright.durations import UNITS as DURATION_UNITS
from tensorwright.engine_format import file_names
from tensorwright.engine_format.checksums import REMEDY
from tensorwright.engine_format.engine_config import FORMAT, FORMAT_VERSION
from tensorwright.engine_format.kv_cache import DECISION_INTERVAL
from tensorwright.options.declare import Door, Duration, Option, Size, options_at
from tensorwright.options.engine import DEFAULT_LIMITS, EngineFields
from tensorwright.options.speculation import METHODS, NUMBERS, Speculation
from tensorwright.runtime.base import request_bounds as bounds
from tensorwright.runtime.requests.generation_defaults import GENERATION_FIELDS
from tensorwright.runtime.requests.native_params import NATIVE_PARAMS
from tensorwright.runtime.requests.sampling_params import BEAMS, DEFAULTS, DRAWING
from tensorwright.sizes import UNITS as SIZE_UNITS

PATH = "runtime/c_interface/declarations.h"

OWN_PARAMS = ("max_tokens", "bad_words", "dry_sequence_breakers", "truncate_prompt_tokens")
"""The parameters that sampling_json.cc reads with code of their own."""
_TEXT = "this interface gives token ids, and texts are made by the tokenizer above it"
REFUSED_PARAMS = {
    "logits_processors": "they are functions of Python",
    "stop": f"{_TEXT}: look for the text in what you decode, and cancel the request; or pass stop_token_ids",
    "include_stop_str_in_output": f"it belongs to stop, which is not here: {_TEXT}",
    "detokenize": _TEXT,
    "skip_special_tokens": _TEXT,
    "kept_special_tokens": _TEXT,
    "guided_decoding": "grammars are compiled in Python: make masks yourself, and pass first_mask and tw_set_mask()",
    "adapter": "adapters are loaded in Python: merge it into the checkpoint with tensorwright merge-lora",
}
"""The parameters that the C interface refuses, and why and what to do instead."""

NATIVE_OPTIONS = (
    "kv_cache_memory", "max_batch_size", "max_num_tokens", "max_prefill_chunk", "itl_goal", "priority_ageing",
    "max_prompt_logprob_rows", "max_queue_size", "threads", "load", "numa", "enable_prefix_caching",
    "state_snapshots", "jump_forward",
)  # fmt: skip
"""The options of engines that the C interface takes."""
OWN_OPTIONS = ("speculative",)
"""The options that open_options.cc reads with code of their own."""
PROPOSERS = ("ngram", "suffix")
"""The methods of speculation that it has: the others open an engine, or need files, by Python."""
_PYTHON = "it is a part of the Python API and of the server"
_TIERS = "the secret of the blocks that are kept, and their identity, are made in Python"
REFUSED_OPTIONS = {
    "watchdog": "another engine is put in place by Python: read tw_stats() and open the engine again",
    "step_limit": "it belongs to watchdog, which is not here",
    "watchdog_dir": "it belongs to watchdog, which is not here",
    "rank_timeout": "this interface runs engines of one rank",
    "devices": "this interface runs engines of target cpu",
    "gpu_memory": "this interface runs engines of target cpu",
    "adapters": "adapters are loaded in Python",
    "max_loras": "adapters are loaded in Python",
    "max_lora_rank": "adapters are loaded in Python",
    "cache_events": _PYTHON,
    "trace": "the file of a trace is written by Python",
    "guided_vocabulary": "grammars are compiled in Python",
    "chat_template": _PYTHON,
    "tool_parser": _PYTHON,
    "reasoning_parser": _PYTHON,
    "generation_config": "what a request leaves out is as SamplingParams says; the model's defaults are in tw_facts()",
    "prefix_cache_memory": _TIERS,
    "prefix_cache_disk": _TIERS,
    "prefix_cache_disk_size": _TIERS,
    "prefix_cache_ttl": _TIERS,
    "pinned_prefix_memory": "prefixes are pinned by Python",
}
"""The options that it refuses, and why."""

HEADER = """\
// What the C interface takes of the declarations of Python: parameters, options, bounds, names and units.
// Generated from SamplingParams, EngineFields and others by
//   python -m tensorwright.runtime.c_interface.declarations
// Change those and run that; a test compares.
#ifndef TENSORWRIGHT_RUNTIME_C_INTERFACE_DECLARATIONS_H_
#define TENSORWRIGHT_RUNTIME_C_INTERFACE_DECLARATIONS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

// clang-format off
"""

FOOTER = """\
}  // namespace tensorwright
// clang-format on

#endif  // TENSORWRIGHT_RUNTIME_C_INTERFACE_DECLARATIONS_H_
"""


def render() -> str:
    """Returns the text of the header."""
    parts = [_params(), _options(), _speculation(), ["namespace tensorwright {", ""], _constants(), _tables(), [FOOTER]]
    return "\n".join([HEADER, *(line for part in parts for line in part)])


def _quoted(text: str) -> str:
    """Returns a literal of C++ for a text, which is that of JSON for all that is declared."""
    return json.dumps(text, ensure_ascii=True)


def _macro(comment: str, name: str, rows: Iterable[str]) -> list[str]:
    return [comment, f"#define {name}(FIELD) \\", *(f"  {row} \\" for row in rows), "", ""]


def _params() -> list[str]:
    rows = []
    for name, (member, form) in NATIVE_PARAMS.items():
        only = "kBeams" if name in BEAMS else "kDrawing" if name in DRAWING else "kAlways"
        rows.append(f"FIELD({name}, {member}, {form}, {only}, {_quoted(json.dumps(DEFAULTS[name]))})")
    comment = "// Parameters: name, member of Sampling, form, when it may be given, default as JSON."
    return _macro(comment, "TENSORWRIGHT_PARAMS", rows)


def engine_options() -> dict[str, Option]:
    """Returns the options of LLM that are no options of a build, by name."""
    return {option.name: option for option in options_at(Door.LLM, EngineFields)}


def _options() -> list[str]:
    options = engine_options()
    rows = []
    for name in NATIVE_OPTIONS:
        option = options[name]
        kind, form = _form(option)
        choices = _quoted("|".join(option.choices))
        rows.append(f"FIELD({name}, {kind}, {form}, {_value(option.default)}, {choices})")
    comment = "// Options: name, type, form, default, choices."
    return _macro(comment, "TENSORWRIGHT_OPTIONS", rows)


def _speculation() -> list[str]:
    standard = Speculation("")
    rows = []
    for name, (low, high) in NUMBERS.items():
        methods = "|".join(method for method in PROPOSERS if name in METHODS[method])
        rows.append(f"FIELD({name}, {getattr(standard, name)}, {low}, {high}, {_quoted(methods)})")
    comment = "// Numbers of the option speculative: name, default, least, greatest, methods that have it."
    return _macro(comment, "TENSORWRIGHT_SPECULATION", rows)


def _form(option: Option) -> tuple[str, str]:
    """Returns the type of C++ for an option's value, and the name of what reads it."""
    kinds: dict[type, tuple[str, str]] = {
        Size: ("int64_t", "size"),
        Duration: ("double", "duration"),
        int: ("int32_t", "count"),
        bool: ("bool", "flag"),
        str: ("std::string", "choice"),
    }
    kind, form = kinds[option.kind]
    return (f"std::optional<{kind}>" if option.default is None else kind), form


def _value(default: Any) -> str:
    return "std::nullopt" if default is None else json.dumps(default)


def _constants() -> list[str]:
    texts = {
        "kFormat": FORMAT, "kConfigFile": file_names.CONFIG, "kChecksumsFile": file_names.CHECKSUMS,
        "kGenerationConfigFile": file_names.GENERATION_CONFIG, "kPlanFile": file_names.CPU_PLAN,
        "kWeightsFile": file_names.CPU_WEIGHTS, "kRemedy": REMEDY, "kProposers": "|".join(PROPOSERS),
    }  # fmt: skip
    numbers = {
        "kFormatVersion": FORMAT_VERSION,
        "kDecisionInterval": DECISION_INTERVAL,
        "kDefaultMaxBatchSize": DEFAULT_LIMITS["max_batch_size"],
        "kDefaultMaxNumTokens": DEFAULT_LIMITS["max_num_tokens"],
        "kMaxStopTokenIds": bounds.STOP_TOKEN_IDS,
        "kMaxBadWords": bounds.BAD_WORDS,
        "kMaxBadWordTokens": bounds.BAD_WORD_TOKENS,
        "kMaxLogitBiases": bounds.LOGIT_BIASES,
        "kMaxSaltLength": bounds.SALT_LENGTH,
    }
    return [
        *(f"inline constexpr char {name}[] = {_quoted(text)};" for name, text in texts.items()),
        *(f"inline constexpr int32_t {name} = {number};" for name, number in numbers.items()),
        f"inline constexpr char kDefaultMaxTokens[] = {_quoted(json.dumps(DEFAULTS['max_tokens']))};",
        f"inline constexpr char kDefaultDryBreakers[] = "
        f"{_quoted(json.dumps(list(DEFAULTS['dry_sequence_breakers'])))};",
        "",
    ]


def _tables() -> list[str]:
    return [
        "struct Named {",
        "  const char *name, *text;",
        "};",
        "struct Unit {",
        "  const char* name;",
        "  double factor;",
        "};",
        "",
        *_named("Parameters that are refused, and why.", "kRefusedParams", REFUSED_PARAMS),
        *_named("Options that are refused, and why.", "kRefusedOptions", REFUSED_OPTIONS),
        *_named(
            f"What {file_names.GENERATION_CONFIG} calls parameters, and their names here.",
            "kGenerationFields",
            GENERATION_FIELDS,
        ),
        *_units("Of sizes, in bytes; in small letters.", "kSizeUnits", SIZE_UNITS),
        *_units("Of times, in seconds.", "kDurationUnits", DURATION_UNITS),
    ]


def _named(comment: str, name: str, texts: Mapping[str, str]) -> list[str]:
    rows = (f"    {{{_quoted(key)}, {_quoted(text)}}}," for key, text in texts.items())
    return [f"// {comment}", f"inline constexpr Named {name}[] = {{", *rows, "};", ""]


def _units(comment: str, name: str, units: Mapping[str, float]) -> list[str]:
    rows = (f"    {{{_quoted(unit)}, {float(factor)!r}}}," for unit, factor in units.items())
    return [f"// {comment}", f"inline constexpr Unit {name}[] = {{", *rows, "};", ""]


def main() -> None:
    """Writes the file below the current folder, which must be the repository's root."""
    path = Path(PATH)
    if not path.parent.is_dir():
        sys.exit(f"there is no {path.parent} here: run this at the root of the repository")
    path.write_text(render(), encoding="utf-8")


if __name__ == "__main__":
    main()
