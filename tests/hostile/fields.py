"""Each field that a body may have, and with what it is attacked. Names are paths: "messages[].content" is the content
of a message. A field of the server's OpenAPI document that is not here fails a test.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hostile.values import (
    Value,
    decimals,
    deep,
    deep_objects,
    digits,
    highest_int,
    infinite,
    just,
    keys,
    lists,
    nan,
    numbers_by_key,
    objects,
    ones,
    repeat,
    surrogates,
    text,
    texts,
    texts_by_key,
    too_high,
    words,
    zeros,
)  # fmt: skip

Table = Mapping[str, tuple[Value, ...]]

SWITCH = (text,)
REFUSED = (lists,)

SAMPLING: Table = {
    "model": (text, surrogates),
    "n": (digits, just("128"), just("32")),
    "temperature": (decimals, infinite),
    "top_p": (decimals, nan),
    "presence_penalty": (decimals, nan),
    "frequency_penalty": (decimals, just("100")),
    "logit_bias": (numbers_by_key, texts_by_key),
    "seed": (digits, too_high),
    "stop": (texts, ones, text),
    "stream": SWITCH,
    "stream_options": (numbers_by_key, lists),
    "stream_options.include_usage": SWITCH,
    "stream_options.include_obfuscation": SWITCH,
    "response_format": (numbers_by_key, deep_objects),
    "response_format.type": (text,),
    "response_format.json_schema": (numbers_by_key,),
    "response_format.json_schema.name": (text,),
    "response_format.json_schema.description": (text,),
    "response_format.json_schema.schema": (numbers_by_key, just('{"type":"array","minItems":1000000000}')),
    "response_format.json_schema.strict": SWITCH,
    "user": (text, surrogates),
    "top_k": (digits, highest_int),
    "min_p": (decimals, infinite),
    "typical_p": (decimals, nan),
    "xtc_threshold": (decimals, nan),
    "xtc_probability": (decimals, infinite),
    "dry_multiplier": (decimals, just("100")),
    "dry_base": (decimals, infinite),
    "dry_allowed_length": (digits, highest_int),
    "dry_penalty_last_n": (digits, highest_int),
    "dry_sequence_breakers": (texts, ones, text),
    "no_repeat_ngram_size": (digits, highest_int),
    "logits_processors": REFUSED,
    "repetition_penalty": (decimals, just("100")),
    "use_beam_search": SWITCH,
    "best_of": (digits, highest_int),
    "length_penalty": (decimals, nan),
    "early_stopping": SWITCH,
    "min_tokens": (digits, highest_int),
    "ignore_eos": SWITCH,
    "stop_token_ids": (ones, texts, just(f"[{2**31 - 1}]")),
    "bad_words": (texts, ones, text),
    "include_stop_str_in_output": SWITCH,
    "skip_special_tokens": SWITCH,
    "truncate_prompt_tokens": (digits, highest_int),
    "priority": (digits, highest_int),
    "deadline": (digits, highest_int),
    "cache_salt": (text, surrogates, just('""')),
    "guided_json": (text, deep_objects, keys("{}")),
    "guided_regex": (text, just('"((a{1,99}){1,99}){1,99}"'), just('"' + "(a|b|ab)*" * 3000 + '"')),
    "guided_choice": (texts, lists, text),
    "guided_grammar": (text, words, just('"' + "start: a\\n" * 6000 + '"')),
    "guided_whitespace_pattern": (text, just('"(((((a*)*)*)*)*)*"')),
    "max_tokens": (digits, highest_int),
    "logprobs": (digits, just("20")),
}

CALL = '"id":"a","function":{"name":"f","arguments":"{}"}'
TOOL = '"type":"function","function":{"name":"f"}'

MESSAGES: Table = {
    "messages": (repeat('{"role":"user","content":"a"}'), objects, deep),
    "messages[].role": (text,),
    "messages[].content": (words, repeat('{"type":"text","text":"a"}'), ones),
    "messages[].content[].type": (text,),
    "messages[].content[].text": (text, surrogates),
    "messages[].name": (text,),
    "messages[].tool_calls": (repeat(f"{{{CALL}}}"), lists, objects),
    "messages[].tool_calls[].id": (text, surrogates),
    "messages[].tool_calls[].type": (text,),
    "messages[].tool_calls[].index": (digits,),
    "messages[].tool_calls[].function": (numbers_by_key,),
    "messages[].tool_calls[].function.name": (text, surrogates),
    "messages[].tool_calls[].function.arguments": (text, just('"' + "[" * 90_000 + '"')),
    "messages[].tool_call_id": (text, surrogates),
    "messages[].reasoning_content": (text, surrogates),
    "messages[].reasoning": (words,),
    "messages[].function_call": REFUSED,
    "messages[].audio": REFUSED,
    "messages[].refusal": REFUSED,
    "messages[].annotations": REFUSED,
    "add_generation_prompt": SWITCH,
    "chat_template_kwargs": (numbers_by_key, deep_objects),
    "tools": (repeat(f"{{{TOOL}}}"), lists, deep),
    "tools[].type": (text,),
    "tools[].function": (numbers_by_key,),
    "tools[].function.name": (text, surrogates),
    "tools[].function.description": (words, surrogates),
    "tools[].function.parameters": (
        numbers_by_key,
        deep_objects,
        just('{"properties":{"a":{"$ref":"#"}},"required":["a"]}'),
    ),
    "tools[].function.strict": SWITCH,
}


def shared(names: Iterable[str]) -> Table:
    """Rows of fields that another endpoint has by the same declaration, and where they are attacked with all values.
    `declared.unshared` holds each of these rows against the server's OpenAPI document."""
    return dict.fromkeys(names, ())


COMPLETION: Table = SAMPLING | {
    "prompt": (text, words, ones, texts, repeat("[1]"), lists, surrogates, deep),
    "echo": SWITCH,
    "suffix": REFUSED,
}

CHAT: Table = shared(SAMPLING) | MESSAGES | {
    "max_tokens": (digits,),
    "logprobs": (digits,),
    "max_completion_tokens": (digits, highest_int),
    "top_logprobs": (digits,),
    "modalities": (texts,),
    "service_tier": (text,),
    "store": SWITCH,
    "tool_choice": (text, deep_objects),
    "tool_choice.type": (text,),
    "tool_choice.function": (numbers_by_key,),
    "tool_choice.function.name": (text, surrogates),
    "tool_choice.allowed_tools": (numbers_by_key,),
    "tool_choice.allowed_tools.mode": (text,),
    "tool_choice.allowed_tools.tools": (repeat(f"{{{TOOL}}}"), lists),
    "tool_choice.allowed_tools.tools[].type": (text,),
    "tool_choice.allowed_tools.tools[].function": (numbers_by_key,),
    "tool_choice.allowed_tools.tools[].function.name": (text,),
    "parallel_tool_calls": SWITCH,
    "reasoning_effort": (text,),
    "thinking_token_budget": (digits, highest_int),
    **dict.fromkeys(
        (
            "functions", "function_call", "audio", "prediction", "metadata", "verbosity", "web_search_options",
            "prompt_cache_key", "safety_identifier",
        ),
        REFUSED,
    ),
}  # fmt: skip

TOKENIZE: Table = shared(MESSAGES) | {
    "messages[].content": (words,),
    "tools[].function.description": (words,),
    "chat_template_kwargs": (numbers_by_key,),
    "add_generation_prompt": SWITCH,
    "model": (text,),
    "prompt": (text, words, surrogates),
    "add_special_tokens": SWITCH,
    "return_token_strs": SWITCH,
}

PIN: Table = shared(path for path in MESSAGES if path != "add_generation_prompt") | {
    "name": (text, surrogates),
    "model": (text,),
    "prompt": (words, zeros, lists),
    "messages": MESSAGES["messages"][:1],
    "cache_salt": (text,),
}

DETOKENIZE: Table = {"model": (text,), "tokens": (zeros, lists, just(f"[{2**63}]"))}

DRAWING = shared(
    (
        "model", "temperature", "top_p", "top_k", "min_p", "typical_p", "xtc_threshold", "xtc_probability",
        "dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers",
        "no_repeat_ngram_size", "logits_processors", "presence_penalty", "frequency_penalty", "repetition_penalty",
        "seed", "logit_bias", "min_tokens", "ignore_eos", "priority", "deadline", "cache_salt",
    )
)  # fmt: skip
"""The fields that one declaration gives to several endpoints: completions are attacked with all of them."""

PART = ("type", "text", "annotations", "logprobs")
RESPONSES: Table = DRAWING | {
    "input": (words, repeat('{"role":"user","content":"a"}'), objects, deep),
    "input[].type": (text,),
    "input[].role": (text,),
    "input[].content": (words, repeat('{"type":"input_text","text":"a"}'), ones),
    "input[].output": (words, ones),
    "input[].summary": (repeat('{"type":"summary_text","text":"a"}'), ones),
    **{f"input[].content[].{name}": (lists if name == "annotations" else words,) for name in PART},
    **shared(f"input[].{name}[].{part}" for name in ("output", "summary") for part in PART),
    "input[].call_id": (text,),
    "input[].name": (surrogates,),
    "input[].arguments": (text, just('"' + "[" * 90_000 + '"')),
    "input[].encrypted_content": (text,),
    "input[].id": (text,),
    "input[].status": (text,),
    "input[].phase": (text,),
    "instructions": (words, surrogates),
    "tools": (repeat('{"type":"function","name":"f"}'), deep),
    "tools[].type": (text,),
    "tools[].name": (text,),
    "tools[].description": (words,),
    "tools[].parameters": (numbers_by_key, deep_objects),
    "tools[].strict": SWITCH,
    "tool_choice": (text, deep_objects),
    "tool_choice.type": (text,),
    "tool_choice.name": (text,),
    "tool_choice.mode": (text,),
    "tool_choice.tools": (repeat('{"type":"function","name":"f"}'),),
    "tool_choice.tools[].type": (text,),
    "tool_choice.tools[].name": (text,),
    "parallel_tool_calls": SWITCH,
    "text": (numbers_by_key,),
    "text.format": (numbers_by_key,),
    "text.format.type": (text,),
    "text.format.name": (text,),
    "text.format.description": (words,),
    "text.format.schema": (numbers_by_key, deep_objects),
    "text.format.strict": SWITCH,
    "text.verbosity": REFUSED,
    "reasoning": (numbers_by_key,),
    "reasoning.effort": (text,),
    "reasoning.summary": REFUSED,
    "reasoning.generate_summary": REFUSED,
    "max_output_tokens": (digits, highest_int),
    "metadata": (texts_by_key, numbers_by_key),
    "store": SWITCH,
    "previous_response_id": (text, surrogates),
    "stream": SWITCH,
    "stream_options": (lists,),
    "stream_options.include_usage": SWITCH,
    "stream_options.include_obfuscation": SWITCH,
    "truncation": (text,),
    "include": (texts, ones),
    "user": (text,),
    "service_tier": (text,),
    "background": SWITCH,
    "chat_template_kwargs": (numbers_by_key,),
    "thinking_token_budget": (digits,),
    "top_logprobs": (digits,),
    **dict.fromkeys(
        (
            "conversation", "prompt", "context_management", "moderation", "max_tool_calls", "prompt_cache_key",
            "prompt_cache_retention", "safety_identifier",
        ),
        REFUSED,
    ),
}  # fmt: skip

TURNS: Table = {
    "model": (text,),
    "system": (words, repeat('{"type":"text","text":"a"}'), ones),
    "system[].type": (text,),
    "system[].text": (words,),
    "system[].cache_control": (numbers_by_key,),
    "system[].citations": (lists,),
    "messages": (repeat('{"role":"user","content":"a"}'), objects, deep),
    "messages[].role": (text,),
    "messages[].content": (words, repeat('{"type":"text","text":"a"}'), ones),
    "messages[].content[].type": (text,),
    "messages[].content[].text": (text, surrogates),
    "messages[].content[].thinking": (words,),
    "messages[].content[].signature": (text,),
    "messages[].content[].data": (text,),
    "messages[].content[].id": (text,),
    "messages[].content[].name": (text,),
    "messages[].content[].input": (numbers_by_key, deep_objects),
    "messages[].content[].tool_use_id": (text,),
    "messages[].content[].content": (words, repeat('{"type":"text","text":"a"}'), ones),
    "messages[].content[].is_error": SWITCH,
    "messages[].content[].citations": (lists,),
    "messages[].content[].cache_control": (deep_objects,),
    **shared(f"messages[].content[].content[].{name}" for name in ("type", "text", "citations", "cache_control")),
    "tools": (repeat('{"name":"f","input_schema":{}}'), deep),
    "tools[].type": (text,),
    "tools[].name": (text,),
    "tools[].description": (words,),
    "tools[].input_schema": (numbers_by_key, deep_objects),
    "tools[].strict": SWITCH,
    "tools[].cache_control": (numbers_by_key,),
    "tool_choice": (text, deep_objects),
    "tool_choice.type": (text,),
    "tool_choice.name": (text,),
    "tool_choice.disable_parallel_tool_use": SWITCH,
    "thinking": (numbers_by_key,),
    "thinking.type": (text,),
    "thinking.budget_tokens": (digits, highest_int),
    "thinking.display": (text,),
    "output_config": (numbers_by_key,),
    "output_config.effort": (text,),
    "output_config.format": (numbers_by_key,),
    "output_config.format.type": (text,),
    "output_config.format.schema": (numbers_by_key, deep_objects),
    "chat_template_kwargs": (numbers_by_key,),
    "cache_control": (numbers_by_key,),
    **dict.fromkeys(("output_format", "mcp_servers", "container", "context_management"), REFUSED),
}

ANTHROPIC: Table = DRAWING | TURNS | {
    "max_tokens": (digits, highest_int),
    "stop_sequences": (texts, ones),
    "stream": SWITCH,
    "metadata": (texts_by_key,),
    "metadata.user_id": (text,),
    "service_tier": (text,),
    "inference_geo": REFUSED,
}  # fmt: skip

COUNT: Table = shared(TURNS) | {"messages": TURNS["messages"][:1], "system": TURNS["system"][:1]}

TURN = shared(("model", "priority", "deadline", "cache_salt"))
INSTRUCTION: Table = {"instruction": (text, surrogates)}
EMBEDDING: Table = TURN | {
    "input": (texts, lists, zeros, text, surrogates),
    "encoding_format": (text,),
    "dimensions": (digits, highest_int),
    "user": (text,),
    "prompt_name": (text, surrogates),
    "normalize": SWITCH,
}
SCORE: Table = TURN | INSTRUCTION | {"text_1": (texts, lists, text), "text_2": (texts, ones, surrogates)}
RERANK: Table = TURN | INSTRUCTION | {
    "query": (text, surrogates),
    "documents": (texts, repeat('{"text":"a"}'), objects),
    "documents[].text": (text, surrogates),
    "top_n": (digits, highest_int),
    "return_documents": SWITCH,
}  # fmt: skip

BODIES: Mapping[str, Table] = {
    "/v1/responses": RESPONSES,
    "/v1/messages": ANTHROPIC,
    "/v1/messages/count_tokens": COUNT,
    "/v1/completions": COMPLETION,
    "/v1/chat/completions": CHAT,
    "/tokenize": TOKENIZE,
    "/detokenize": DETOKENIZE,
    "/v1/pinned_prefixes": PIN,
    "/v1/embeddings": EMBEDDING,
    "/v1/score": SCORE,
    "/v1/rerank": RERANK,
    "/rerank": shared(RERANK),
}
"""By endpoint: all fields of its body."""

PATHS: Mapping[str, tuple[str, ...]] = {
    "/health": (),
    "/ready": (),
    "/metrics": (),
    "/v1/models": (),
    "/v1/models/{model}": ("model",),
    "/v1/responses/{response_id}": ("response_id", "stream"),
    "/v1/pinned_prefixes/{name}": ("name",),
    "/v1/cache_events": ("model", "after", "limit", "wait", "stream", "last-event-id"),
}
"""Endpoints without a body, and their parameters."""
DELETED = ("/v1/pinned_prefixes/{name}",)
"""Those of them that are asked with DELETE alone."""

MESSAGE = '[{"role":"user","content":"a"}]'
ROOTS: Mapping[str, Mapping[str, str]] = {
    "/v1/completions": {"model": '"pico"', "prompt": '"a"', "max_tokens": "4", "ignore_eos": "true"},
    "/v1/chat/completions": {"model": '"pico"', "messages": MESSAGE, "max_tokens": "4", "ignore_eos": "true"},
    "/v1/responses": {"model": '"pico"', "input": '"a"', "max_output_tokens": "4", "ignore_eos": "true"},
    "/v1/messages": {"model": '"pico"', "messages": MESSAGE, "max_tokens": "4", "ignore_eos": "true"},
    "/v1/messages/count_tokens": {"model": '"pico"', "messages": MESSAGE},
    "/tokenize": {"model": '"pico"'},
    "/detokenize": {"model": '"pico"', "tokens": "[1]"},
    "/v1/pinned_prefixes": {"name": '"a"', "model": '"pico"'},
    "/v1/embeddings": {"model": '"pico"', "input": '"a"'},
    "/v1/score": {"model": '"pico"', "text_1": '"a"', "text_2": '"a"'},
    **{path: {"model": '"pico"', "query": '"a"', "documents": '["a"]'} for path in ("/v1/rerank", "/rerank")},
}
SIBLINGS: Mapping[str, Mapping[str, str]] = {
    "messages[]": {"role": '"user"', "content": '"a"'},
    "messages[].content[]": {"type": '"text"', "text": '"a"'},
    "messages[].tool_calls[]": {"function": '{"name":"f","arguments":"{}"}'},
    "messages[].tool_calls[].function": {"name": '"f"'},
    "tools[]": {"type": '"function"', "function": '{"name":"f"}'},
    "tools[].function": {"name": '"f"'},
    "tool_choice": {"type": '"function"', "function": '{"name":"f"}'},
    "tool_choice.function": {"name": '"f"'},
    "tool_choice.allowed_tools": {"mode": '"auto"', "tools": f"[{{{TOOL}}}]"},
    "tool_choice.allowed_tools.tools[]": {"type": '"function"', "function": '{"name":"f"}'},
    "tool_choice.allowed_tools.tools[].function": {"name": '"f"'},
    "stream_options": {},
    "response_format": {"type": '"json_schema"', "json_schema": '{"name":"a","schema":{}}'},
    "response_format.json_schema": {"name": '"a"', "schema": "{}"},
    "documents[]": {},
}
"""What stands beside a field where it stands inside of another, so that it is read at all."""
_ANTHROPIC: Mapping[str, Mapping[str, str]] = {
    "system[]": {"type": '"text"', "text": '"a"'},
    "tools[]": {"name": '"f"', "input_schema": "{}"},
    "tool_choice": {"type": '"auto"'},
    "thinking": {"type": '"enabled"', "budget_tokens": "1"},
    "output_config": {},
    "output_config.format": {"type": '"json_schema"', "schema": "{}"},
    "metadata": {},
}
OF_ENDPOINT: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    "/v1/responses": {
        "input[]": {"role": '"user"', "content": '"a"'},
        "input[].content[]": {"type": '"input_text"', "text": '"a"'},
        "tools[]": {"type": '"function"', "name": '"f"'},
        "tool_choice": {"type": '"allowed_tools"', "mode": '"auto"', "tools": '[{"type":"function","name":"f"}]'},
        "tool_choice.tools[]": {"type": '"function"', "name": '"f"'},
        "text": {},
        "text.format": {"type": '"json_schema"', "name": '"a"', "schema": "{}"},
        "reasoning": {},
    },
    "/v1/messages": _ANTHROPIC,
    "/v1/messages/count_tokens": _ANTHROPIC,
}
"""The same where an endpoint has it in another form."""
NEEDS: Mapping[str, Mapping[str, str]] = {
    "stream_options": {"stream": "true"},
    "guided_whitespace_pattern": {"guided_json": '{"type":"object"}'},
    "top_logprobs": {"logprobs": "true"},
    "min_tokens": {"max_tokens": "null"},
    "max_completion_tokens": {"max_tokens": "null"},
}
"""What a field needs beside it, by the first name of its path."""


def body_with(endpoint: str, path: str, value: str) -> bytes:
    """A body whose field at `path` has the value, and that is sound but for it."""
    names = path.split(".")
    for depth in range(len(names) - 1, -1, -1):
        parent = ".".join(names[:depth])
        siblings = SIBLINGS | OF_ENDPOINT.get(endpoint, {})
        beside = dict(siblings[parent] if depth else _root(endpoint, names[0].removesuffix("[]")))
        beside[names[depth].removesuffix("[]")] = value
        value = "{" + ",".join(f'"{name}":{given}' for name, given in beside.items()) + "}"
        if depth and names[depth - 1].endswith("[]"):
            value = f"[{value}]"
    return value.encode()


def _root(endpoint: str, first: str) -> Mapping[str, str]:
    base = {**ROOTS[endpoint], **NEEDS.get(first, {})}
    if endpoint == "/tokenize":
        base |= {} if first == "prompt" else {"prompt": '"a"'} if first not in _OF_MESSAGES else {"messages": MESSAGE}
    return base


_OF_MESSAGES = ("messages", "add_generation_prompt", "chat_template_kwargs", "tools")
