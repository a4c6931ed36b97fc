"""TensorRT-LLM's guided decoding inputs, through the model."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from support import hostile_grammars as hostile
from support.fake_triton import Request, TritonError
from support.waiting import PATIENCE, wait_until
from tensorwright.errors import QueueFullError
from tensorwright.runtime.guided import child_link, compile_process
from tensorwright.runtime.guided.vocabulary import GuidedVocabulary
from tensorwright.runtime.serving.triton import starting
from tensorwright.runtime.serving.triton.model import TritonPythonModel

SCHEMA = json.dumps(
    {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
)


@pytest.mark.parametrize(
    ("kind", "guide", "form"),
    [
        ("json_schema", SCHEMA, r'\{\s*"a"\s*:\s*(true|false)\s*\}'),
        ("regex", "[ab]{3}-[0-9]{2}", "[ab]{3}-[0-9]{2}"),
        ("ebnf_grammar", 'root ::= "yes" | "no"', "yes|no"),
    ],
)
def test_the_output_has_the_guides_form(ask: Callable[..., Request], kind: str, guide: str, form: str) -> None:
    guided = {"guided_decoding_guide_type": kind, "guided_decoding_guide": guide}
    text = ask(text_input="x = ", max_tokens=48, exclude_input_in_output=True, **guided)
    assert re.fullmatch(form, text.sender.wait()[0]["text_output"][0].decode())
    tokens = ask(input_ids=[5], input_lengths=1, request_output_len=48, return_finish_reason=True, **guided)
    assert tokens.sender.wait()[0]["finish_reason"][0] == b"stop"


def test_any_json_object(ask: Callable[..., Request]) -> None:
    request = ask(text_input="x", max_tokens=3, exclude_input_in_output=True, guided_decoding_guide_type="json")
    assert request.sender.wait()[0]["text_output"][0].decode().lstrip().startswith("{")


def test_what_stands_between_the_parts_of_json(ask: Callable[..., Request]) -> None:
    guided = {"guided_decoding_guide_type": "json_schema", "guided_decoding_guide": SCHEMA}
    text = ask(
        text_input="x = ",
        max_tokens=48,
        exclude_input_in_output=True,
        guided_decoding_whitespace_pattern="()",
        **guided,
    )
    assert re.fullmatch(r'\{"a":(true|false)\}', text.sender.wait()[0]["text_output"][0].decode())
    wrong = ask(text_input="x", max_tokens=3, guided_decoding_whitespace_pattern=" ")
    assert wrong.sender.wait() == []
    assert "needs 'guided_decoding_guide_type'" in str(wrong.sender.errors[0])


def test_a_broken_guide_is_the_requests_own_error(ask: Callable[..., Request]) -> None:
    guided = {"guided_decoding_guide_type": "regex", "guided_decoding_guide": "(("}
    request = ask(text_input="x", max_tokens=3, **guided)
    assert request.sender.wait() == []
    assert len(request.sender.errors) == 1


def test_a_new_guide_holds_up_nobody(
    model: TritonPythonModel, ask: Callable[..., Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    """execute() returns while a guide is being compiled, so requests after it start and end."""
    go_on, begun = threading.Event(), threading.Event()
    compile_guide = GuidedVocabulary.compile

    def held(self: GuidedVocabulary, *args: Any) -> Any:
        begun.set()
        assert go_on.wait(PATIENCE)
        return compile_guide(self, *args)

    monkeypatch.setattr(GuidedVocabulary, "compile", held)
    guided = {"guided_decoding_guide_type": "regex", "guided_decoding_guide": "[cd]{3}"}
    waiting = ask(text_input="x = ", max_tokens=8, exclude_input_in_output=True, **guided)
    stopped = ask("stop me", text_input="x = ", max_tokens=8, **guided | {"guided_decoding_guide": "[ef]{9}"})
    try:
        assert begun.wait(PATIENCE)
        assert ask(text_input="x", max_tokens=3).sender.wait()
        ask("stop me", text_input="x", max_tokens=1, stop=True).sender.wait()
        assert not waiting.sender.final.is_set()
    finally:
        go_on.set()
    assert re.fullmatch("[cd]{3}", waiting.sender.wait()[0]["text_output"][0].decode())
    assert len(stopped.sender.wait()) <= 1
    assert not stopped.sender.errors


@pytest.mark.parametrize("model", [True], ids=["batched"], indirect=True)
@pytest.mark.parametrize("shape", hostile.OF_BOTH_KINDS)
def test_a_guide_that_would_end_the_process_is_refused(
    ask: Callable[..., Request], shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of any length: what is too long by itself, and what is not. The tests of guided/test_compiling.py have the chains
    of all shapes."""

    def guided(limit: float, kind: str, guide: str) -> Request:
        """limit: seconds that the guide may take, the start of the process that compiles it included."""
        monkeypatch.setattr(compile_process, "LIMIT_S", limit)
        request = ask(text_input="x", max_tokens=3, guided_decoding_guide_type=kind, guided_decoding_guide=guide)
        request.sender.wait()
        return request

    def refused(kind: str, guide: str) -> str:
        """Why; but nothing if this process was kept from beginning for most of the second."""
        (error,) = guided(1.0, kind, guide).sender.errors
        return "" if error.code == TritonError.UNAVAILABLE else str(error)

    for links in (16_000, hostile.LONGEST[shape]):
        assert guided(PATIENCE, "regex", f"[a-z]{{3}}|{shape}{links}").sender.responses
        asked = hostile.chain(shape, links)
        kind = "json_schema" if "json" in asked else "ebnf_grammar"
        why = wait_until(partial(refused, kind, next(iter(asked.values()))))
        assert re.search("must have at most|cannot be followed", why)


def test_a_compiler_that_is_killed_is_not_the_engines_end(
    ask: Callable[..., Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others go on, and a client is told that it may come again."""

    def killed(*given: Any) -> Any:
        raise child_link.Gone("it ended without a word")

    guided = {"guided_decoding_guide_type": "regex", "guided_decoding_guide": "[uv]{2}"}
    with monkeypatch.context() as patch:
        patch.setattr(child_link.Child, "ask", killed)
        request = ask(text_input="x = ", max_tokens=8, **guided)
        assert request.sender.wait() == []
    [error] = request.sender.errors
    assert error.code == TritonError.UNAVAILABLE
    assert str(error).endswith("try again later")
    assert ask(text_input="x = ", max_tokens=8, **guided).sender.wait()


def test_too_many_that_start_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starting, "MAX_STARTING", 1)
    held, ended = starting.Starting(), threading.Event()
    held.start("a", lambda stopped: ended.wait(PATIENCE) and None)  # type: ignore[arg-type,return-value]
    with pytest.raises(QueueFullError, match="1 requests wait for their grammars already"):
        held.start("b", lambda stopped: None)
    ended.set()
    held.close()
    held.start("b", lambda stopped: None)
    held.close()


def test_who_gets_no_thread_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    none = starting.Starting()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            none.start("a", lambda stopped: None)
    assert not none._running, "close() would wait for it"
    none.close()


@pytest.mark.parametrize("at_once", [True, False], ids=["in execute()", "in its own thread"])
def test_a_panic_of_a_library_is_its_requests_own(
    model: TritonPythonModel, ask: Callable[..., Request], monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    """Nobody waits for an answer that never comes."""

    class Panic(BaseException):
        pass

    def panic(*given: Any) -> Any:
        raise Panic("index out of bounds")

    with monkeypatch.context() as patch:
        patch.setattr(model.llm if at_once else GuidedVocabulary, "generate_async" if at_once else "compile", panic)
        guided = {"guided_decoding_guide_type": "regex", "guided_decoding_guide": "[gh]{2}"}
        request = ask(text_input="x = ", max_tokens=8, **({} if at_once else guided))
        assert request.sender.wait() == []
    assert "Panic: index out of bounds" in str(request.sender.errors[0])
    assert ask(text_input="x", max_tokens=3).sender.wait()
