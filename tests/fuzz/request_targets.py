"""What comes with a request: its body, its parameters, its grammar, its messages, its tensors."""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from fastapi.exceptions import RequestValidationError
from fuzz.answers import LONGEST, Answered, as_json
from pydantic_core import from_json

from support.fake_runtime import EOS, byte_tokenizer
from tensorwright import GuidedDecodingParams, SamplingParams
from tensorwright.errors import InvalidOptionError, InvalidRequestError, TensorwrightError
from tensorwright.runtime.api.chat import chat_prompt
from tensorwright.runtime.base import request_bounds as bounds
from tensorwright.runtime.guided.grammar import LIMITS
from tensorwright.runtime.guided.translation import translate
from tensorwright.runtime.guided.vocabulary import GuidedVocabulary
from tensorwright.runtime.requests.native_sampling import make_sampling
from tensorwright.runtime.requests.prompts import Capacity, Prompt, check_request
from tensorwright.runtime.serving.server import tokenization
from tensorwright.runtime.serving.server.body_route import read_body
from tensorwright.runtime.serving.server.chat import plan_of
from tensorwright.runtime.serving.server.chat_request import ChatCompletionRequest
from tensorwright.runtime.serving.server.completion_request import CompletionRequest
from tensorwright.runtime.serving.server.errors import describe_error, describe_invalid
from tensorwright.runtime.serving.server.json_shape import check_shape
from tensorwright.runtime.serving.server.sampling import chat_params, completion_params
from tensorwright.runtime.serving.server.text_engine import TextEngine
from tensorwright.runtime.serving.server.tokenization import DetokenizeRequest, TokenizeRequest
from tensorwright.runtime.serving.triton.interfaces import INTERFACES, Interface
from tensorwright.runtime.serving.triton.tensors import NUMPY, split_rows
from tensorwright.runtime.text.tokenizer import Tokenizer

REFUSED = Answered(InvalidRequestError, InvalidOptionError)
CAPACITY = Capacity(groups=((0, 8), (16, 8)), block_size=32, max_batch_size=4)
MOST_PROMPTS, MOST_STEPS = 4, 8  # of one input that are looked at
TEMPLATES = {
    "default": (
        "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% if message.name %}"
        " by {{ message.name }}{% endif %}{% endfor %}{% if given %}{{ given | tojson(indent=2) }}{% endif %}"
    ),
    "strict": (
        "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('after ' + message['content'] + ' comes no ' + message['role']) }}{% endif %}"
        "[{{ message['role'] }}] {{ message['content'] | trim }}{{ eos_token }}{% endfor %}"
    ),
    "tool_use": (
        "{% for tool in tools %}{{ tool | tojson }}{% endfor %}{% for document in documents or [] %}"
        "{{ document.title }}: {{ document.text }}{% endfor %}{% for message in messages %}"
        "{% for call in message.tool_calls or [] %}{{ call.function.name }}({{ call.function.arguments | tojson }})"
        "{% endfor %}{{ message.content or '' }}{% endfor %}{{ strftime_now('%Y') if date_string is defined }}"
    ),
}


@lru_cache(maxsize=1)
def engine() -> Any:
    """As far as requests know one."""
    return SimpleNamespace(
        path=Path("engine"),
        tokenizer=Tokenizer(byte_tokenizer()),
        vocab_size=EOS + 1,
        max_seq_len=128,
        eos_token_ids=[EOS],
        chat_templates=TEMPLATES,
        tokenizer_settings=({"bos_token": "<s>", "eos_token": "<end>"}, {}),
        config=SimpleNamespace(task="generate"),
    )


@lru_cache(maxsize=1)
def vocabulary() -> GuidedVocabulary:
    """With the process that compiles grammars."""
    return GuidedVocabulary(engine())


def submitted(prompt: Prompt, params: SamplingParams) -> None:
    """All that comes before the engine, and what the engine is given. Grammars have a target of their own."""
    params = dataclasses.replace(params, guided_decoding=None)
    make_sampling(check_request(prompt, params, engine(), CAPACITY), engine().eos_token_ids)


def sampling_params(data: bytes) -> None:
    """data: parameters, and a prompt, as JSON."""
    fields = as_json(data)
    if not isinstance(fields, dict):
        return
    prompt: Any = fields.pop("prompt", "a")
    biases, guide = fields.get("logit_bias"), fields.get("guided_decoding")
    if isinstance(biases, dict):  # JSON has no other keys than texts
        fields["logit_bias"] = {int(key) if key.isdecimal() else key: bias for key, bias in biases.items()}
    with REFUSED:
        if isinstance(guide, dict):
            fields["guided_decoding"] = GuidedDecodingParams(**guide)
        params = SamplingParams(**fields)
        assert hash(params) == hash(dataclasses.replace(params))
        assert params.completion_seed(1) != params.completion_seed(2) or params.seed is None
        submitted(prompt, params)


def grammar(data: bytes) -> None:
    """data: parameters of guided decoding as JSON, or else one text for each that takes a text."""
    fields, text = as_json(data), data.decode("utf-8", "replace")
    for each in [fields] if isinstance(fields, dict) else [{"regex": text}, {"grammar": text}, {"json": text}]:
        with REFUSED:
            params = GuidedDecodingParams(**each)
            assert len(params.text) <= bounds.SCHEMA_LENGTH
            assert GuidedDecodingParams(**{params.kind: getattr(params, params.kind)}).text == params.text
            translate(vocabulary().tokens, params, LIMITS)


def guided(data: bytes) -> None:
    """data: as of `grammar`, compiled in the process for that, then here, then followed."""
    fields, text = as_json(data), data.decode("utf-8", "replace")
    compiler = vocabulary().compiler
    before = compiler.pid
    with REFUSED:
        made = vocabulary().compile(GuidedDecodingParams(**(fields if isinstance(fields, dict) else {"grammar": text})))
        row: Any = made.first_mask(False)
        matcher = made.start(False)
        for _ in range(MOST_STEPS):
            allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
            assert len(allowed)
            assert allowed[-1] <= EOS
            row = None if allowed[0] == EOS else matcher.advance([int(allowed[0])])
            if row is None:
                break
    assert compiler.pid == before, "the process for all grammars ended, not the fork for this one"


def body(data: bytes) -> None:
    """data: the body of a request, read as each of them. What it says is done as far as the engine."""
    for model, answer in BODIES.items():
        try:
            answer(read_body(data, model, []))
        except RequestValidationError as error:
            told = describe_invalid(error)
        except TensorwrightError as error:
            told = describe_error(error)
        else:
            continue
        assert 400 <= told.status < 500, told
        assert len(told.response().body) < LONGEST


def _complete(request: CompletionRequest) -> None:
    params = completion_params(request, {})
    for prompt in request.prompts[:MOST_PROMPTS]:
        submitted(prompt, params)


def _chat(request: ChatCompletionRequest) -> None:
    params = chat_params(request, {})
    plan = plan_of(text_engine(), request, params)
    submitted(plan.prompt, plan.params)


@lru_cache(maxsize=1)
def text_engine() -> TextEngine:
    llm: Any = SimpleNamespace(engine=engine(), chat_template=None, tool_parser="hermes", reasoning_parser="auto")
    return TextEngine("m", llm, engine().tokenizer)


BODIES: dict[Any, Any] = {
    CompletionRequest: _complete,
    ChatCompletionRequest: _chat,
    TokenizeRequest: lambda request: tokenization._tokenize(text_engine(), request),
    DetokenizeRequest: lambda request: tokenization._detokenize(text_engine(), request),
}


def shape(data: bytes) -> None:
    """data: a JSON text. What is counted is what a parser makes of it, wherever the text is cut into pieces."""
    try:
        value = from_json(data)
    except ValueError:
        with REFUSED:
            check_shape(data)
        return
    depth, parts, values = _counted(value, 1)
    fits = depth <= bounds.BODY_DEPTH and parts <= bounds.BODY_PARTS and values <= bounds.BODY_VALUES
    try:
        check_shape(data)
    except InvalidRequestError:
        assert not fits or b":" in data  # a key that stands twice is made once
    else:
        assert fits


def chat(data: bytes) -> None:
    """data: as JSON messages, the template's variables and the name of one of TEMPLATES."""
    asked = as_json(data)
    if not isinstance(asked, dict):
        return
    variables, name = asked.get("variables"), asked.get("template")
    template = name if isinstance(name, str) and name in TEMPLATES else None
    with REFUSED:
        given = variables if isinstance(variables, dict) else {}
        rendered = chat_prompt(engine(), asked.get("messages"), template, asked.get("start") is True, given)
        rendered.text.encode()


def triton(data: bytes) -> None:
    """data: as JSON an interface, whether it is batched, parameters, and tensors, which get the declared types."""
    asked = as_json(data)
    if not isinstance(asked, dict) or not isinstance(asked.get("tensors"), dict):
        return
    name, batched = asked.get("interface"), asked.get("batched") is not False
    interface = INTERFACES[name if isinstance(name, str) and name in INTERFACES else "both"]
    try:
        inputs = {key: _tensor(interface, key, value) for key, value in asked["tensors"].items()}
    except (ValueError, TypeError, OverflowError):
        return  # no client can send it
    with REFUSED:
        rows = split_rows(inputs, batched)
        for row in rows:
            interface.check(row, batched)
        parameters = asked.get("parameters")
        interface.check_parameters(parameters if isinstance(parameters, dict) else {})
        for row in rows[:MOST_PROMPTS]:
            row.flag("stop")
            job = interface.read(row, engine(), False, {})
            submitted(job.prompt, job.params)


def _tensor(interface: Interface, name: str, value: Any) -> np.ndarray:
    dtype = next((tensor.dtype for tensor in interface.inputs if tensor.name == name), "STRING")
    listed = np.array(value if isinstance(value, list) else [[value]], object)
    if dtype != "STRING":
        return listed.astype(NUMPY[dtype])
    for at, text in np.ndenumerate(listed):
        listed[at] = str(text).encode("utf-8", "surrogatepass")  # bytes that are no UTF-8, too
    return listed


def _counted(value: Any, depth: int) -> tuple[int, int, int]:
    """Of a parsed JSON: its depth, its lists, objects and texts, and the commas between its values."""
    if isinstance(value, str):
        return 0, 1, 0
    if not isinstance(value, (list, dict)):
        return 0, 0, 0
    below = [_counted(each, depth + 1) for each in (value.values() if isinstance(value, dict) else value)]
    keys = len(value) if isinstance(value, dict) else 0
    deepest = 1 + max((each[0] for each in below), default=0)
    return deepest, 1 + keys + sum(each[1] for each in below), max(0, len(value) - 1) + sum(each[2] for each in below)
