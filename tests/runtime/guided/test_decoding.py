"""Guided decoding over a fake engine: what is refused, the masks on their way, and how completions end."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models

from support.fake_runtime import EOS, FakeEngine, engine_config, write_engine
from support.waiting import PATIENCE, wait_until
from tensorwright import LLM, GuidedDecodingParams, SamplingParams
from tensorwright.errors import InvalidRequestError, MissingDependencyError
from tensorwright.runtime.engine import native
from tensorwright.runtime.guided import grammar, library, vocabulary
from tensorwright.runtime.guided.reader import guided_vocabulary
from tensorwright.runtime.requests.engine_client import EngineClient

DIGIT = {"type": "integer", "minimum": 0, "maximum": 2}
PAIR = {"type": "object", "properties": {"a": DIGIT, "b": DIGIT}, "required": ["a", "b"]}
NESTED = {"type": "object", "properties": {"a": {"type": "string"}}}
for _ in range(200):
    NESTED = {"type": "object", "properties": {"a": NESTED}}


def guided(max_tokens: int = 20, **asked: Any) -> SamplingParams:
    """asked: of GuidedDecodingParams, or else of SamplingParams."""
    fields = GuidedDecodingParams.__dataclass_fields__
    shape = GuidedDecodingParams(**{name: value for name, value in asked.items() if name in fields})
    rest = {name: value for name, value in asked.items() if name not in fields}
    return SamplingParams(max_tokens=max_tokens, temperature=0, guided_decoding=shape, **rest)


@pytest.fixture
def endless(fake: FakeEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[LLM]:
    """An engine whose model has no end-of-sequence token."""
    own = FakeEngine()
    monkeypatch.setattr(native, "create_engine", lambda *args: own)
    config = engine_config()
    config["model"]["eos_token_ids"] = []
    with LLM(write_engine(tmp_path / "endless", config), kv_cache_memory="1MiB") as llm:
        yield llm


@pytest.mark.parametrize(
    ("asked", "prompt", "text"),
    [
        ({"choice": ["cab", "dab"]}, "zzz", "cab"),
        ({"choice": ["cab", "zab"]}, "zzz", "zab"),
        ({"choice": ['"\\/\n', "é☃"]}, "\\", '"\\/\n'),
        ({"choice": ['"\\/\n', "é☃"]}, "é☃", "é☃"),
        ({"regex": "[a-c]{3}|x"}, "bca", "bca"),
        ({"regex": "[a-c]{3}|x"}, "xyz", "x"),
        ({"regex": r"\d\d"}, "zzz", "00"),
        ({"json_object": True}, "{}", "{}"),
        ({"json": {"enum": ["on", "off"]}}, '"off"', '"off"'),
        ({"json": PAIR}, '{ "a" : 1 , "b":\n2}', '{ "a" : 1 , "b":\n2}'),
        ({"json": PAIR, "whitespace_pattern": ""}, '{"a":1,"b":2}', '{"a":1,"b":2}'),
        ({"json": PAIR, "whitespace_pattern": ""}, "{    }", '{"a":0,"b":0}'),
        ({"json": PAIR, "whitespace_pattern": "\n *"}, '{\n  "a":1,\n\nb":0}', '{\n  "a":1,\n"b":0}'),
        ({"json_object": True, "whitespace_pattern": " ?"}, "{ }", "{ }"),
        ({"grammar": "root ::= one | two\none ::= [a-b]+ \"!\"\ntwo ::= 'x'".replace("'", '"')}, "ab!", "ab!"),
        ({"grammar": 'start: A B?\nA: "a"+\nB: /[bc]/'}, "aac", "aac"),
        ({"grammar": 'start: "::=" # no rule\n'.replace("#", "//")}, "z", "::="),
        ({"grammar": r'root ::= "\x41\u00e9\U00002603\\\"" [^\x42\n]{2,3}'}, 'Aé☃\\"xyz', 'Aé☃\\"xyz'),
        ({"grammar": 'root ::= expr "="\nexpr ::= expr "+" expr | [0-9]'}, "1+2+3=", "1+2+3="),
        ({"grammar": 'root ::= ("a" | "b")* "c"? # comment'}, "abac", "abac"),
    ],
    ids=str,
)  # fmt: skip
def test_the_text_is_of_the_grammar(llm: LLM, asked: dict[str, Any], prompt: str, text: str) -> None:
    """The fake model says what the prompt says where that is allowed, and starts over at its end."""
    output = llm.generate(prompt + "\x00", guided(**asked)).outputs[0]
    assert output.text == text
    assert (output.finish_reason, output.token_ids[-1]) == ("stop", EOS)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"json": {"type": "strin"}}, "guided_decoding: json cannot be followed: Invalid type: strin"),
        ({"json": {"not": {}}}, 'Unimplemented keys: ."not".'),
        ({"json": {"type": "array", "uniqueItems": True}}, "uniqueItems"),
        ({"json": {"not": {}, "x-guidance": {"lenient": True}}}, 'Unimplemented keys: ."not".'),
        ({"json": {"type": "integer", "minimum": 5, "maximum": 3}}, r"minimum \(5\) is greater than maximum"),
        ({"json": {"$ref": "#/$defs/x"}}, "Pointer '/.defs/x' does not exist"),
        ({"json": {"$ref": "http://localhost/x"}}, "does not fetch resources"),
        ({"json": {"type": "string", "pattern": "a(?=b)"}}, "look-around"),
        ({"json": {"$ref": "#"}}, "no text matches it"),
        ({"json": NESTED}, "recursion limit"),
        ({"json": PAIR, "whitespace_pattern": "x?"}, "whitespace_pattern must admit JSON's blanks alone.*got 'x.'"),
        ({"json_object": True, "whitespace_pattern": r"\s"}, "whitespace_pattern must admit JSON's blanks alone"),
        ({"json_object": True, "whitespace_pattern": " /?"}, "whitespace_pattern must admit JSON's blanks alone"),
        ({"json_object": True, "whitespace_pattern": "("}, "whitespace_pattern cannot be followed: .*unclosed group"),
        ({"json_object": True, "whitespace_pattern": "\ud800"}, "whitespace_pattern cannot be followed: .*surrogate"),
        ({"regex": "a("}, "regex cannot be followed: .*unclosed group"),
        ({"regex": r"(a)\1"}, "backreferences are not supported"),
        ({"regex": "(" * 50_000}, "regex cannot be followed: .{1,610}$"),
        ({"grammar": "root ::= missing"}, "grammar cannot be followed: Rule 'missing' not found"),
        ({"grammar": 'other ::= "a"'}, "No 'root' rule"),
        ({"grammar": "start: missing"}, 'unknown name: "missing"'),
        ({"grammar": "start: start"}, "no text matches it"),
        ({"grammar": "root ::= " + "(" * 50_000}, "grammar cannot be followed"),
        ({"choice": ["\ud800"]}, "choice cannot be followed: .*surrogate"),
        ({"regex": "\ud800"}, "regex cannot be followed: .*surrogate"),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_refused_before_work_starts(llm: LLM, fake: FakeEngine, asked: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"(?s){message}"):
        llm.generate_async("ab", guided(**asked))
    assert not fake.submitted


def test_limits_hold_at_submission(llm: LLM, fake: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(grammar.LIMITS, "initial_lexer_fuel", 100)
    with pytest.raises(InvalidRequestError, match=r"regex cannot be followed: .*(?i:fuel|limit|complex)"):
        llm.generate_async("ab", guided(regex="(a|bc|def){1,50}x.*y"))
    assert not fake.submitted


def test_what_no_token_can_begin_is_refused(llm: LLM, endless: LLM) -> None:
    assert llm.generate("ab", guided(regex="()")).outputs[0].token_ids == [EOS]
    for without_end, params in ((llm, guided(regex="()", ignore_eos=True)), (endless, guided(regex="()"))):
        with pytest.raises(InvalidRequestError, match="no token of the model begins a text that it admits"):
            without_end.generate_async("ab", params)


def test_without_a_tokenizer(fake: FakeEngine, tmp_path: Path) -> None:
    params = guided(regex="a", detokenize=False)
    with (
        LLM(write_engine(tmp_path / "engine", tokenizer=False), kv_cache_memory="1MiB") as llm,
        pytest.raises(InvalidRequestError, match="has no tokenizer, which guided decoding needs"),
    ):
        llm.generate_async({"prompt_token_ids": [1]}, params)


def test_without_the_library(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    library.load_library.cache_clear()
    with pytest.raises(MissingDependencyError, match=r"pip install -e '.\[guided\]'"):
        llm.generate_async("ab", guided(regex="a"))
    assert llm.generate("ab", SamplingParams(max_tokens=2)).outputs[0].text == "ab"


def test_compiled_once(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    known = guided_vocabulary(llm.engine)
    monkeypatch.setattr(vocabulary, "KEPT", 2)
    first, second, third = (GuidedDecodingParams(regex=text) for text in ("a", "b", "c"))
    compiled = known.compile(first)
    assert known.compile(GuidedDecodingParams(regex="a")) is compiled
    known.compile(second)
    known.compile(first)
    known.compile(third)  # the second was the longest unused
    assert list(known._grammars) == [first, third]


def test_no_mask_waits_for_a_text(llm: LLM, fake: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither its own request's nor another's: a text is handed out here when the next mask of all has come."""
    fake.gate.clear()
    handles = [llm.generate_async("abcd", guided(regex="[a-d]{4}")) for _ in range(3)]
    hand_out = EngineClient._dispatch

    def dispatch(self: EngineClient, event: Any) -> None:
        if event.tokens and not event.finish:
            following = len(self._requests[event.request_id]._state.output().outputs[0].token_ids) + 1
            wait_until(lambda: all((handle.request_id, 0, following) in fake.masks for handle in handles))
        hand_out(self, event)

    monkeypatch.setattr(EngineClient, "_dispatch", dispatch)
    fake.gate.set()
    assert [handle.result(PATIENCE).outputs[0].text for handle in handles] == ["abcd"] * 3
    assert len(fake.masks) == 3 * 5


def test_masks_are_of_the_models_tokens(llm: LLM, fake: FakeEngine) -> None:
    llm.generate("ab", guided(regex="ab?"))
    first, second, third = (fake.masks[1, 0, index] for index in range(3))
    assert (first.dtype, first.shape) == (np.uint32, (9,))  # 257 tokens
    letters = {letter: llm.engine.tokenizer.encode(letter)[0] for letter in "ab"}
    allowed = [
        set(np.unpackbits(mask.view(np.uint8), bitorder="little").nonzero()[0]) for mask in (first, second, third)
    ]
    assert allowed == [{letters["a"]}, {letters["b"], EOS}, {EOS}]


def test_a_model_with_fewer_tokens_than_its_tokenizer(fake: FakeEngine, tmp_path: Path) -> None:
    """Cut-down models: the end-of-sequence token is gone too."""
    config = engine_config()
    config["model"]["vocab_size"] = 100
    with LLM(write_engine(tmp_path / "engine", config), kv_cache_memory="1MiB") as llm:
        output = llm.generate({"prompt_token_ids": [70, 71]}, guided(regex="(.|\n){5}")).outputs[0]
        assert (output.token_ids, output.finish_reason) == ([70, 71, 70, 71, 70], "stop")
        assert {mask.shape for mask in fake.masks.values()} == {(4,)}
        assert all(mask[3] >> 4 == 0 for mask in fake.masks.values())


def test_a_tokenizer_of_words_and_bytes(fake: FakeEngine, tmp_path: Path) -> None:
    """As Llama 2 has it: what is no word is spelled in byte tokens."""
    words = ["<unk>", "▁the", "▁cat", "a", "t", "é", *(f"<0x{byte:02X}>" for byte in range(256))]
    known = {word: index for index, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocab=known, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(["</s>"])
    config = engine_config()
    config["model"].update(vocab_size=len(words) + 1, eos_token_ids=[len(words)])
    engine = write_engine(tmp_path / "engine", config, tokenizer=False, more={"tokenizer.json": tokenizer.to_str()})
    with LLM(engine, kv_cache_memory="1MiB") as llm:
        ids = [known["▁cat"], known["é"], known["<0xE2>"], known["<0x82>"], known["<0xAC>"], known["a"], 0]
        output = llm.generate({"prompt_token_ids": ids}, guided(choice=[" the", " caté€a", " cat"])).outputs[0]
        assert (output.text, output.token_ids) == (" caté€a", [*ids[:-1], len(words)])


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_without_an_end_token_the_grammar_ends_it(llm: LLM, endless: LLM, ignore_eos: bool) -> None:
    with_end = llm if ignore_eos else endless
    output = with_end.generate("abcabc", guided(regex="[a-c]{4}é", ignore_eos=ignore_eos, logprobs=0)).outputs[0]
    assert (output.text, output.finish_reason, output.stop_reason) == ("abcaé", "stop", None)
    assert len(output.token_ids) == len(output.logprobs) == 6
    assert EOS not in output.token_ids
    assert not with_end.get_stats()["running"]
    output = with_end.generate("aaaa", guided(max_tokens=7, regex="a+", ignore_eos=ignore_eos)).outputs[0]
    assert (output.text, output.finish_reason) == ("aaaaaaa", "length")


def test_min_tokens_beyond_the_grammars_end(endless: LLM) -> None:
    other = endless.generate_async("xyz", SamplingParams(max_tokens=40))
    with pytest.raises(InvalidRequestError, match="min_tokens must be at most 2, for nothing may follow"):
        endless.generate("abcabc", guided(regex="ab", min_tokens=3))
    assert endless.generate("abcabc", guided(regex="ab", min_tokens=2)).outputs[0].text == "ab"
    assert len(other.result(PATIENCE).outputs[0].text) == 40


def test_each_completion_has_its_own_place(llm: LLM) -> None:
    outputs = llm.generate("abc", guided(regex="a{4}|bca?b?|cabca", n=3)).outputs
    assert [output.text for output in outputs] == ["aaaa", "bcab", "cabca"]
    assert {output.finish_reason for output in outputs} == {"stop"}


def test_stop_strings_and_length_cut_it(llm: LLM) -> None:
    output = llm.generate("abc", guided(regex="[abc]{10}", stop="cab")).outputs[0]
    assert (output.text, output.finish_reason, output.stop_reason) == ("ab", "stop", "cab")
    output = llm.generate("abc", guided(max_tokens=4, regex="[abc]{10}")).outputs[0]
    assert (output.text, output.finish_reason) == ("abca", "length")


def test_several_tokens_in_one_event(llm: LLM, fake: FakeEngine) -> None:
    fake.tokens_per_event = 3
    assert llm.generate("abc", guided(regex="[abc]{7}")).outputs[0].text == "abcabca"


def test_a_matcher_that_fails_ends_its_request_alone(llm: LLM, fake: FakeEngine) -> None:
    fake.obeys = False  # a token that its mask forbids
    free = llm.generate_async("xyz", SamplingParams(max_tokens=50))
    bad, good = (llm.generate_async(prompt, guided(max_tokens=50, regex="a+", n=2)) for prompt in ("ab", "aa"))
    with pytest.raises(InvalidRequestError, match=r"guided_decoding: regex could not be followed after 0 tokens: .*b"):
        bad.result(PATIENCE)
    assert [output.text for output in good.result(PATIENCE).outputs] == ["a" * 50] * 2
    assert free.result(PATIENCE).outputs[0].text == ("xyz" * 17)[:50]
    assert not fake._alive


def test_a_mask_that_is_not_taken_ends_its_request_alone(
    llm: LLM, fake: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    give = fake.set_mask

    def set_mask(request: int, *mask: Any) -> bool:
        if request == 1:
            raise InvalidRequestError("of a wrong length")
        return give(request, *mask)

    monkeypatch.setattr(fake, "set_mask", set_mask)
    bad, good = (llm.generate_async("aa", guided(max_tokens=50, regex="a+")) for _ in range(2))
    with pytest.raises(InvalidRequestError, match="of a wrong length"):
        bad.result(PATIENCE)
    assert good.result(PATIENCE).outputs[0].text == "a" * 50


def test_a_grammar_that_gets_too_complex_ends_its_request_alone(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    other = llm.generate_async("aa", guided(max_tokens=60, regex="a+"))
    monkeypatch.setitem(grammar.LIMITS, "step_max_items", 200)
    ambiguous = 'root ::= expr\nexpr ::= expr expr | expr expr expr | "a"'
    with pytest.raises(InvalidRequestError, match=r"could not be followed after [1-9][0-9]* tokens: "):
        llm.generate("aa", guided(max_tokens=60, grammar=ambiguous))
    assert other.result(PATIENCE).outputs[0].text == "a" * 60
