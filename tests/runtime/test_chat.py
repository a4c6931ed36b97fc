"""LLM.chat over a fake engine: the prompt is transformers' apply_chat_template's, and the sandbox holds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from support.fake_runtime import FakeEngine, byte_tokenizer, write_engine
from tensorwright.errors import InvalidRequestError
from tensorwright.runtime.llm import LLM
from tensorwright.runtime.sampling_params import SamplingParams

TEMPLATE = """{{ bos_token }}
{%- if tools %}
    {{- "tools: " + tools | tojson }}
{%- endif %}
{% for message in messages %}
    {%- if message.role == "secret" %}{{ raise_exception("no secrets") }}{% endif %}
    {%- if message.role == "skip" %}{% continue %}{% endif %}
    {%- if message.role == "assistant" %}{% generation %}{{ message.content }}{% endgeneration %}{% endif %}
    {%- if message.role == "user" %}[{{ message.content | trim }}]{% endif %}
{% endfor %}
{%- if add_generation_prompt %}answer:{% endif %}"""
SPECIAL = {"bos_token": {"content": "<end>"}, "eos_token": "<end>", "model_max_length": 128}
TALK = [
    {"role": "user", "content": " hé <b> "},
    {"role": "skip", "content": "x"},
    {"role": "assistant", "content": "yes"},
    {"role": "user", "content": "why?"},
]
ONE = SamplingParams(max_tokens=1)


@pytest.fixture
def chatty(fake: FakeEngine, tmp_path: Path) -> Any:
    more = {"chat_template.jinja": TEMPLATE, "tokenizer_config.json": json.dumps(SPECIAL)}
    with LLM(write_engine(tmp_path / "engine", more=more), kv_cache_memory="1MiB") as llm:
        yield llm


@pytest.mark.parametrize("add", [True, False])
@pytest.mark.parametrize("tools", [None, [{"name": "é", "parameters": {"b": 1, "a": "<"}}]])
def test_prompts_are_those_of_transformers(chatty: LLM, add: bool, tools: Any) -> None:
    reference = PreTrainedTokenizerFast(tokenizer_object=byte_tokenizer(), bos_token="<end>", eos_token="<end>")
    options = {"chat_template": TEMPLATE, "add_generation_prompt": add, "tools": tools}
    output = chatty.chat(TALK, ONE, add_generation_prompt=add, template_variables={"tools": tools})
    assert output.prompt == reference.apply_chat_template(TALK, tokenize=False, **options)
    assert output.prompt_token_ids == reference.apply_chat_template(TALK, return_dict=False, **options)


def test_one_conversation_or_many(chatty: LLM) -> None:
    assert chatty.chat(TALK, ONE).outputs[0].token_ids == [256]  # the fake says the prompt again
    outputs = chatty.chat([TALK, TALK[:1]], ONE, chat_template="{{ messages | length }}")
    assert [output.prompt for output in outputs] == ["4", "1"]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda llm: llm.chat([{"role": "secret", "content": ""}]), "refuses these messages: no secrets"),
        (lambda llm: llm.chat([{"content": "a"}]), '"role"'),
        (lambda llm: llm.chat([]), "at least one dict"),
        (lambda llm: llm.chat("hello"), "list of at least one dict"),
        (lambda llm: llm.chat(TALK, chat_template="{% if %}"), "refuses these messages"),
        (lambda llm: llm.chat(TALK, chat_template="{{ 1 / 0 }}"), "fails on these messages"),
        (lambda llm: llm.chat(TALK, chat_template="{{ ''.__class__.__mro__ }}"), "unsafe"),
        (lambda llm: llm.chat(TALK, chat_template="{{ messages.append(1) }}"), "not safely callable|unsafe"),
        (lambda llm: llm.chat(TALK, chat_template="{% include '/etc/passwd' %}"), "messages"),
        (lambda llm: llm.chat(TALK, chat_template="{{ '\\ud800' }}"), "messages"),
        (lambda llm: llm.chat(TALK, chat_template="{% for i in range(10**9) %}{% endfor %}"), "messages"),
    ],
)
def test_what_cannot_be_a_prompt_is_refused(chatty: LLM, call: Callable[[LLM], Any], words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        call(chatty)


def test_an_engine_without_template_or_tokenizer_says_so(llm: LLM, fake: FakeEngine, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="no chat template: pass chat_template="):
        llm.chat(TALK)
    bare = write_engine(tmp_path / "bare", tokenizer=False)
    with LLM(bare, kv_cache_memory="1MiB") as mute, pytest.raises(InvalidRequestError, match="no tokenizer"):
        mute.chat(TALK, chat_template="a")
