"""LLM.chat over a fake engine: the prompt is transformers' apply_chat_template's, and the sandbox holds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.fake_runtime import FakeEngine, byte_tokenizer, write_engine
from tensorwright.errors import EngineError, InvalidOptionError, InvalidRequestError
from tensorwright.runtime.api.llm import LLM
from tensorwright.runtime.engine.engine_dir import open_engine
from tensorwright.runtime.requests.sampling_params import SamplingParams
from tensorwright.runtime.text import chat_template

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
    reference = pytest.importorskip("transformers").PreTrainedTokenizerFast(
        tokenizer_object=byte_tokenizer(), bos_token="<end>", eos_token="<end>"
    )
    options = {"chat_template": TEMPLATE, "add_generation_prompt": add, "tools": tools}
    output = chatty.chat(TALK, ONE, add_generation_prompt=add, template_variables={"tools": tools})
    assert output.prompt == reference.apply_chat_template(TALK, tokenize=False, **options)
    assert output.prompt_token_ids == reference.apply_chat_template(TALK, return_dict=False, **options)


TOO_MUCH_WORK = "{% for message in messages %}{% for other in messages %}{{ other.role[0] }}{% endfor %}{% endfor %}"


def test_the_work_of_a_template_is_bounded(chatty: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """A template that is quadratic in what a client sends. Each look at an entry counts, of one rendering alone."""
    monkeypatch.setattr(chat_template, "MOST_LOOKS", 2 * 11 * 11)
    talk = [{"role": "user", "content": "x"}] * 12
    for _ in range(2):
        assert len(chatty.chat(talk[:11], ONE, chat_template=TOO_MUCH_WORK).prompt) == 121
        with pytest.raises(InvalidRequestError, match=r"looks at its variables more than 242 times.*send fewer"):
            chatty.chat(talk, ONE, chat_template=TOO_MUCH_WORK)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ("", '{"b": ["é"], "a": 1}'),
        ("indent=1", '{\n "b": [\n  "é"\n ],\n "a": 1\n}'),
        ("indent='-', ensure_ascii=true", '{\n-"b": [\n--"\\u00e9"\n-],\n-"a": 1\n}'),
        ("separators=(',', ':'), sort_keys=true", '{"a":1,"b":["é"]}'),
        ("indent=none, separators=none", '{"b": ["é"], "a": 1}'),
    ],
)
def test_tojson_takes_what_transformers_does(chatty: LLM, options: str, text: str) -> None:
    template = "{{ " + f"value | tojson({options})" + " }}"
    given = {"value": {"b": ["é"], "a": 1}}
    assert chatty.chat(TALK, ONE, chat_template=template, template_variables=given).prompt == text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        # Out of the sandbox by json's own calls, with any Jinja before 3.1.6.
        ("default='{0.__class__.__init__.__globals__}'.format", "unexpected keyword argument 'default'"),
        ("cls=cycler", "unexpected keyword argument 'cls'"),
        ("object_hook=cycler", "unexpected keyword argument 'object_hook'"),
        ("skipkeys=true", "unexpected keyword argument 'skipkeys'"),
        ("indent=true", "indent must be"),
        ("indent=-1", "indent must be"),
        ("indent=17", "indent must be"),
        ("indent=1.5", "indent must be"),
        ("indent='-' * 17", "indent must be"),
        ("indent=cycler", "indent must be"),
        ("separators=','", "separators must be"),
        ("separators=(',', cycler)", "separators must be"),
        ("separators=(',', ':', ';')", "separators must be"),
        ("separators=(',' * 17, ':')", "separators must be"),
        ("ensure_ascii=1", "ensure_ascii must be"),
        ("sort_keys=cycler", "sort_keys must be"),
    ],
)
def test_tojson_takes_nothing_else(chatty: LLM, options: str, words: str) -> None:
    template = "{{ " + f"[cycler('a')] | tojson({options})" + " }}"
    with pytest.raises(InvalidRequestError, match=words):
        chatty.chat(TALK, ONE, chat_template=template)


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
        (lambda llm: llm.chat([{"role": deep()}]), "a dict too large to show"),
        (lambda llm: llm.chat([deep()]), "a list too large to show"),
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


def deep() -> Any:
    """As deep as Python's stack, or deeper."""
    value: Any = []
    for _ in range(5000):
        value = [value]
    return value


@pytest.mark.parametrize(
    "template", ["{{ raise_exception(messages[0].content) }}", "{{ [][messages[0].content] + 1 }}"]
)
def test_a_refusal_quotes_little_of_the_messages(chatty: LLM, template: str) -> None:
    with pytest.raises(InvalidRequestError, match="these messages: ") as caught:
        chatty.chat([{"role": "user", "content": "\ud800" + "x" * 100_000}], chat_template=template)
    assert len(str(caught.value).encode()) < 1000


def test_an_engine_without_template_or_tokenizer_says_so(llm: LLM, fake: FakeEngine, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="no chat template: pass chat_template="):
        llm.chat(TALK)
    bare = write_engine(tmp_path / "bare", tokenizer=False)
    with LLM(bare, kv_cache_memory="1MiB") as mute, pytest.raises(InvalidRequestError, match="no tokenizer"):
        mute.chat(TALK, chat_template="a")


# -- what a template does not look at ----------------------------------------------------------------------------------

FIRST_SYSTEM = """{% if messages[0].role == 'system' %}<{{ messages[0]['content'] }}>{% endif %}
{%- for m in messages %}{% if m.role != 'system' %}{{ m.role }}:{{ m.content }};{% endif %}{% endfor %}"""
ANY_SYSTEM = "{% for m in messages %}{{ m.role }}{% if m.name %}({{ m.name }}){% endif %}:{{ m.content }};{% endfor %}"
ITEMS = "{% for m in messages %}{% for key, value in m.items() %}{{ key }}={{ value }};{% endfor %}{% endfor %}"
KNOWS = "{% for m in messages %}{{ '!' if m.role in ['developer'] }}{{ m.role }}:{{ m.content }};{% endfor %}"
USER, DEVELOPER = {"role": "user", "content": "hi"}, {"role": "developer", "content": "be brief"}
NAMED = {**USER, "name": "Ann"}
RESULT = {"role": "tool", "name": "clock", "content": "12"}


@pytest.mark.parametrize(
    ("template", "messages", "prompt"),
    [
        (FIRST_SYSTEM, [DEVELOPER, USER], "<be brief>user:hi;"),
        (ANY_SYSTEM, [USER, DEVELOPER], "user:hi;system:be brief;"),
        (KNOWS, [DEVELOPER, USER], "!developer:be brief;user:hi;"),
        (ANY_SYSTEM, [NAMED, {**DEVELOPER, "name": "op"}], "user(Ann):hi;system(op):be brief;"),
        (ITEMS, [NAMED], "role=user;content=hi;name=Ann;"),
        ("{{ messages | tojson }}", [NAMED], '[{"role": "user", "content": "hi", "name": "Ann"}]'),
        ("{% for m in messages %}{{ m.get('name', '?') }}{% endfor %}", [NAMED, USER], "Ann?"),
        (FIRST_SYSTEM, [USER, RESULT], "user:hi;tool:12;"),
        (FIRST_SYSTEM, [{**USER, "name": None}], "user:hi;"),
    ],
)
def test_developers_and_names_reach_the_model(chatty: LLM, template: str, messages: Any, prompt: str) -> None:
    before = json.dumps(messages)
    assert chatty.chat(messages, ONE, chat_template=template).prompt == prompt
    assert json.dumps(messages) == before


@pytest.mark.parametrize(
    ("template", "messages", "words"),
    [
        (
            FIRST_SYSTEM,
            [USER, DEVELOPER],
            r"messages\[1\] has the role 'developer', which the chat template does not take",
        ),
        (FIRST_SYSTEM, [USER, NAMED], r"messages\[1\] has a name, 'Ann', which the chat template does not read"),
        ("{{ messages[0].content }}{{ messages[1].name }}", [NAMED, NAMED], r"messages\[0\] has a name"),
        (FIRST_SYSTEM, [{**DEVELOPER, "name": "op"}], r"messages\[0\] has a name, 'op'"),
    ],
)
def test_a_message_that_the_template_leaves_out_is_refused(
    chatty: LLM, template: str, messages: Any, words: str
) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        chatty.chat(messages, ONE, chat_template=template)


# -- several templates -------------------------------------------------------------------------------------------------

NAMES = {
    "default": "plain:{{ messages[0].content }}",
    "tool_use": "{{ tools | length }} tools:{{ messages[0].content }}",
    "rag": "{{ documents | length }} documents:{{ messages[0].content }}",
}
FILES = {"chat_template.jinja": NAMES["default"]} | {
    f"additional_chat_templates/{name}.jinja": NAMES[name] for name in ("tool_use", "rag")
}
LISTED = json.dumps({"chat_template": [{"name": name, "template": text} for name, text in NAMES.items()]})
TOOLS = [{"type": "function", "function": {"name": "clock"}}]


@pytest.fixture(params=["files", "list", "old engine"])
def several(request: pytest.FixtureRequest, fake: FakeEngine, tmp_path: Path) -> Any:
    """An engine with three templates, as files, as tokenizer_config.json has them, or with a file of the default."""
    more = {
        "files": FILES,
        "list": {"tokenizer_config.json": LISTED},
        "old engine": {"tokenizer_config.json": LISTED, "chat_template.jinja": NAMES["default"]},
    }[request.param]
    with LLM(write_engine(tmp_path / "engine", more=more), kv_cache_memory="1MiB") as llm:
        yield llm


@pytest.mark.parametrize(
    ("asked", "variables", "prompt"),
    [
        (None, {}, "plain:hi"),
        (None, {"tools": TOOLS}, "1 tools:hi"),
        (None, {"tools": []}, "0 tools:hi"),
        ("rag", {"documents": [{}, {}]}, "2 documents:hi"),
        ("tool_use", {"tools": TOOLS}, "1 tools:hi"),
        ("default", {}, "plain:hi"),
        ("{{ messages[0].content }}!", {}, "hi!"),
    ],
)
def test_templates_are_chosen_as_in_transformers(several: LLM, asked: Any, variables: Any, prompt: str) -> None:
    output = several.chat([USER], ONE, chat_template=asked, template_variables=variables)
    reference = pytest.importorskip("transformers").PreTrainedTokenizerFast(
        tokenizer_object=byte_tokenizer(), chat_template=dict(NAMES)
    )
    assert output.prompt == prompt
    assert prompt == reference.apply_chat_template([USER], chat_template=asked, tokenize=False, **variables)


@pytest.mark.parametrize(
    ("asked", "variables", "words"),
    [
        ("default", {"tools": TOOLS}, "the chat template never reads tools"),
        (None, {"documents": [{}]}, "the chat template never reads documents"),
        ("tools", {}, r"'tools' is neither Jinja nor the name of one of the templates \(default, rag, tool_use\)"),
    ],
)
def test_what_no_template_reads_is_refused(several: LLM, asked: Any, variables: Any, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        several.chat([USER], ONE, chat_template=asked, template_variables=variables)


def test_without_a_default_one_must_be_named(fake: FakeEngine, tmp_path: Path) -> None:
    file = {"additional_chat_templates/rag.jinja": "rag:{{ messages[0].content }}"}
    engine = write_engine(tmp_path / "engine", more=file)
    with LLM(engine, kv_cache_memory="1MiB", chat_template="rag") as llm:
        assert llm.chat([USER], ONE).prompt == "rag:hi"
    with LLM(engine, kv_cache_memory="1MiB") as llm, pytest.raises(InvalidRequestError, match="must name one of rag"):
        llm.chat([USER])


def test_files_hold_before_a_list(fake: FakeEngine, tmp_path: Path) -> None:
    more = {"tokenizer_config.json": LISTED, "chat_template.jinja": "other"}
    assert open_engine(write_engine(tmp_path / "engine", more=more)).chat_templates == {"default": "other"}


@pytest.mark.parametrize("value", [3, [3], [{"name": "a"}], [{"name": 1, "template": "a"}], {"default": 2}])
def test_templates_that_are_none_are_told(tmp_path: Path, value: Any) -> None:
    more = {"tokenizer_config.json": json.dumps({"chat_template": value})}
    with pytest.raises(EngineError, match="neither text nor a named list"):
        open_engine(write_engine(tmp_path / "engine", more=more), read_tokenizer=True)


# -- a template of the operator's --------------------------------------------------------------------------------------


def test_an_llm_may_have_a_template_of_its_own(fake: FakeEngine, tmp_path: Path) -> None:
    engine = write_engine(tmp_path / "engine")
    with LLM(engine, kv_cache_memory="1MiB", chat_template="own:{{ messages[0].content }}") as llm:
        assert llm.chat([USER], ONE).prompt == "own:hi"
        assert llm.chat([USER], ONE, chat_template="{{ 'call' }}").prompt == "call"


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{% if %}", "chat_template must be a Jinja template: line 1: Expected an expression"),
        ("rag", r"chat_template must be Jinja text .* or the name of a template \(there is none\)"),
        ("", "chat_template must be Jinja text or the name of a template, got ''"),
        (3, "got 3"),
    ],
)
def test_a_template_that_cannot_be_is_refused_before_the_engine_starts(
    fake: FakeEngine, tmp_path: Path, template: Any, words: str
) -> None:
    with pytest.raises(InvalidOptionError, match=words):
        LLM(write_engine(tmp_path / "engine"), kv_cache_memory="1MiB", chat_template=template)
    assert not fake.submitted
