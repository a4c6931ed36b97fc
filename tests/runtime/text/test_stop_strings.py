"""Stop strings: alone against a search of the whole text, and in requests over a fake engine."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.fake_runtime import FakeEngine, byte_tokenizer
from support.waiting import PATIENCE
from tensorwright.errors import InvalidRequestError
from tensorwright.runtime.api.llm import LLM
from tensorwright.runtime.requests.request_state import RequestState
from tensorwright.runtime.requests.sampling_params import SamplingParams
from tensorwright.runtime.text.stop_strings import StopAutomaton, StopStrings
from tensorwright.runtime.text.tokenizer import Tokenizer as EngineTokenizer

text_of_ab = st.text("ab", max_size=12)


def search(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """By the definition: the first prefix of the text that ends in a stop string, and the longest of those."""
    for end in range(len(text) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if text[:end].endswith(stop):
                return text[: end if include else end - len(stop)], stop
    return text, None


class Definition:
    """What StopStrings does, one stop string after the other."""

    def __init__(self, stops: list[str], include: bool):
        self.stops, self.include, self.held = stops, include, ""

    def push(self, text: str) -> tuple[str, str | None]:
        text = self.held + text
        found = [(at + len(stop), at, stop) for stop in self.stops if (at := text.find(stop)) >= 0]
        if found:
            end, start, stop = min(found)
            return text[: end if self.include else start], stop
        ends = [text[start:] for start in range(len(text))]
        self.held = next((end for end in ends if any(stop.startswith(end) for stop in self.stops)), "")
        return text[: len(text) - len(self.held)], None


MANY = st.lists(st.text("abc", min_size=1, max_size=6), min_size=1, max_size=12)


@settings(deadline=None)
@given(st.lists(st.text("abc", max_size=5), max_size=12), MANY, st.booleans())
def test_every_step_is_that_of_the_definition(pieces: list[str], stops: list[str], include: bool) -> None:
    """What is given out, what is held back and where it ends."""
    finder, definition = StopStrings(StopAutomaton(stops), include), Definition(stops, include)
    for piece in pieces:
        told = finder.push(piece)
        assert told == definition.push(piece)
        if told[1] is not None:
            return
    assert finder.flush() == definition.held


def test_a_character_costs_the_same_with_many_stop_strings(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = 0
    child = StopAutomaton._child

    def counted(self: StopAutomaton, state: int, letter: str) -> int:
        nonlocal steps
        steps += 1
        return child(self, state, letter)

    text = ("ab" * 50 + "a" * 40 + "c") * 20
    stops = ["a" * length + letter for length in range(1, 65) for letter in "xyz"]
    finders = [StopStrings(StopAutomaton(each), False) for each in (["aax"], stops)]
    monkeypatch.setattr(StopAutomaton, "_child", counted)
    for finder in finders:
        steps = 0
        assert finder.push(text)[1] is None
        assert steps <= 3 * len(text)


def test_completions_of_a_request_share_an_automaton() -> None:
    state = RequestState(1, None, [1], SamplingParams(n=3, stop=["a", "b"]), EngineTokenizer(byte_tokenizer()))
    assert len({id(completion._stops._automaton) for completion in state.completions}) == 1  # type: ignore[union-attr]


@given(st.lists(text_of_ab, max_size=8), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3), st.booleans())
def test_the_cut_does_not_matter(pieces: list[str], stops: list[str], include: bool) -> None:
    expected = search("".join(pieces), stops, include)
    finder, given_out, found = StopStrings(StopAutomaton(stops), include), "", None
    for piece in pieces:
        text, found = finder.push(piece)
        given_out += text
        assert expected[0].startswith(given_out)  # nothing is given out that a stop string could still take back
        if found is not None:
            break
    assert (given_out + finder.flush(), found) == expected


@pytest.mark.parametrize(("include", "text"), [(False, "say "), (True, "say stop")])
def test_a_stop_string_over_tokens_ends_the_request(llm: LLM, fake: FakeEngine, include: bool, text: str) -> None:
    params = SamplingParams(max_tokens=100, stop=["never", "stop"], include_stop_str_in_output=include, logprobs=0)
    output = llm.generate("say stop now", params)
    completion = output.outputs[0]
    assert (completion.text, completion.finish_reason, completion.stop_reason) == (text, "stop", "stop")
    assert completion.token_ids == output.prompt_token_ids[:8]  # a byte each
    assert completion.logprobs is not None
    assert len(completion.logprobs) == 8
    deadline = time.monotonic() + PATIENCE
    while fake.stats()["running"]:
        assert time.monotonic() < deadline, "the engine was not told"
    assert output.metrics.time_per_output_token is not None


def test_what_may_become_a_stop_string_is_held_back(llm: LLM) -> None:
    shown = [o.outputs[0].text for o in llm.generate_async("a sto sta", SamplingParams(max_tokens=9, stop="stop"))]
    assert not any(text.endswith(("s", "st", "sto")) for text in shown[:-1])
    assert shown[-1] == "a sto sta"
    unfinished = llm.generate("a sto", SamplingParams(max_tokens=5, stop="stop")).outputs[0]
    assert (unfinished.text, unfinished.finish_reason, unfinished.stop_reason) == ("a sto", "length", None)


def test_tokens_that_came_in_one_event_are_taken_one_by_one(llm: LLM, fake: FakeEngine) -> None:
    fake.tokens_per_event = 5
    params = SamplingParams(max_tokens=5, stop="b")
    completion = llm.generate("abcde", params).outputs[0]
    assert (completion.text, completion.finish_reason, completion.stop_reason) == ("a", "stop", "b")
    assert len(completion.token_ids) == 2


def test_min_tokens_are_not_searched(llm: LLM) -> None:
    params = SamplingParams(max_tokens=9, stop="b", min_tokens=2)
    assert llm.generate("abab", params).outputs[0].text == "aba"


def test_a_stop_string_that_only_the_end_completes(llm: LLM) -> None:
    assert llm.engine.tokenizer is not None
    ids = llm.engine.tokenizer.encode("aé")[:2]
    completion = llm.generate({"prompt_token_ids": ids}, SamplingParams(max_tokens=2, stop="\ufffd")).outputs[0]
    assert (completion.text, completion.finish_reason, completion.stop_reason) == ("a", "stop", "\ufffd")


def test_stop_strings_need_text() -> None:
    with pytest.raises(InvalidRequestError, match="stop must be left out when detokenize is False"):
        SamplingParams(stop="a", detokenize=False)
