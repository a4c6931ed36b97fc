"""What generation_config.json says of sampling: the default of what a request leaves out, at every door, as in vLLM."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.command_line import call
from support.fake_runtime import A, FakeEngine, ids, write_engine
from tensorwright.errors import EngineError, InvalidOptionError, PromptTooLongError
from tensorwright.runtime.api.llm import LLM
from tensorwright.runtime.engine import native
from tensorwright.runtime.requests.sampling_params import SamplingParams
from tensorwright.runtime.serving.server.app import create_app

SAID = {"temperature": 0.5, "top_k": 20, "top_p": 0.25, "min_p": 0.125, "repetition_penalty": 1.5}
NEUTRAL = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}
LENGTH = 100  # of 128 tokens that the engine holds
CONFIG = {**SAID, "max_new_tokens": LENGTH, "eos_token_id": 256, "do_sample": False, "num_beams": 1, "seed": 3}


def engine_with(path: Path, config: dict[str, Any]) -> Path:
    files = {"generation_config.json": json.dumps(config), "chat_template.jinja": "{{ messages[0].content }}"}
    return write_engine(path / "engine", more={**files, "tokenizer_config.json": "{}"})


def shaped(fake: FakeEngine) -> dict[str, Any]:
    """Of the last request."""
    return {name: getattr([*fake.submitted.values()][-1], name) for name in SAID}


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    return engine_with(tmp_path, CONFIG)


@pytest.fixture
def llm(fake: FakeEngine, engine: Path) -> Any:
    with LLM(engine, kv_cache_memory="1MiB") as llm:
        yield llm


def test_without_parameters_they_are_the_models(llm: LLM, fake: FakeEngine) -> None:
    output = llm.generate(ids(A))
    assert shaped(fake) == SAID
    assert len(output.outputs[0].token_ids) == LENGTH
    llm.generate_async(ids(A)).result()
    assert shaped(fake) == SAID
    assert llm.default_sampling_params == SamplingParams(**SAID, max_tokens=LENGTH)
    llm.generate(ids(A), replace(llm.default_sampling_params, top_k=7))
    assert shaped(fake) == SAID | {"top_k": 7}


def test_given_parameters_are_whole(llm: LLM, fake: FakeEngine) -> None:
    llm.generate(ids(A), SamplingParams(top_p=0.75))
    assert shaped(fake) == NEUTRAL | {"top_p": 0.75}


def test_a_default_length_is_cut_to_the_room_there_is(llm: LLM) -> None:
    assert len(llm.generate(ids(*[A] * 120)).outputs[0].token_ids) == 8
    with pytest.raises(PromptTooLongError):
        llm.generate(ids(*[A] * 128))
    with pytest.raises(PromptTooLongError, match=f"max_tokens is {LENGTH}"):
        llm.generate(ids(*[A] * 120), SamplingParams(max_tokens=LENGTH))


def test_neutral_takes_none_of_it(fake: FakeEngine, engine: Path) -> None:
    with LLM(engine, kv_cache_memory="1MiB", generation_config="neutral") as llm:
        assert len(llm.generate(ids(A)).outputs[0].token_ids) == 16
        assert shaped(fake) == NEUTRAL
        assert llm.default_sampling_params == SamplingParams()
    with pytest.raises(InvalidOptionError, match="generation_config must be one of model, neutral, got 'vllm'"):
        LLM(engine, generation_config="vllm")


@pytest.mark.parametrize(
    ("config", "told"),
    [({"temperature": "hot"}, "temperature"), ({"top_p": 0}, "top_p"), ({"max_new_tokens": 0}, "max_tokens")],
)
def test_what_it_cannot_mean_is_told_with_the_file_and_the_way_out(
    fake: FakeEngine, tmp_path: Path, config: dict[str, Any], told: str
) -> None:
    path = engine_with(tmp_path, config)
    with pytest.raises(EngineError, match=rf"generation_config.json: .*{told} must be .*generation_config='neutral'"):
        LLM(path, kv_cache_memory="1MiB")
    LLM(path, kv_cache_memory="1MiB", generation_config="neutral").shutdown()


CHAT = {"messages": [{"role": "user", "content": "ab"}]}
LONG = {"messages": [{"role": "user", "content": "a" * 120}]}


@pytest.mark.parametrize(
    ("path", "body", "given", "length"),
    [
        ("/v1/completions", {"prompt": "ab"}, {}, 16),  # as at OpenAI, and in vLLM: max_new_tokens is of chats
        ("/v1/completions", {"prompt": "ab", "temperature": 2, "top_k": None, "max_tokens": 3}, {"temperature": 2}, 3),
        ("/v1/chat/completions", CHAT, {}, LENGTH),
        ("/v1/chat/completions", {**CHAT, "top_p": 1, "min_p": 0.0}, {"top_p": 1, "min_p": 0}, LENGTH),
        ("/v1/chat/completions", LONG, {}, 8),
        ("/v1/chat/completions", {**CHAT, "max_tokens": 120, "repetition_penalty": 1}, {"repetition_penalty": 1}, 120),
    ],
)
def test_the_server_fills_in_what_a_body_leaves_out(
    llm: LLM, fake: FakeEngine, path: str, body: dict[str, Any], given: dict[str, Any], length: int
) -> None:
    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(create_app({"model": llm}))
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            return await client.post(path, json=body)

    answer = asyncio.run(ask())
    assert answer.status_code == 200, answer.text
    assert shaped(fake) == SAID | given
    assert answer.json()["usage"]["completion_tokens"] == length


@pytest.mark.parametrize(
    ("config", "options", "expected"),
    [
        (CONFIG, [], SAID),
        (CONFIG, ["--temperature", "0", "--top-p", "0.75"], SAID | {"temperature": 0.0, "top_p": 0.75}),
        (CONFIG, ["--generation-config", "neutral"], NEUTRAL | {"temperature": 0.0}),
        ({"top_p": 0.25}, [], NEUTRAL | {"top_p": 0.25}),  # sampling, so it is not greedy
        ({"repetition_penalty": 1.5}, [], NEUTRAL | {"temperature": 0.0, "repetition_penalty": 1.5}),
        ({}, [], NEUTRAL | {"temperature": 0.0}),
    ],
)
def test_run_fills_in_what_has_no_option(
    fake: FakeEngine,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    config: dict[str, Any],
    options: list[str],
    expected: dict[str, Any],
) -> None:
    engine = engine_with(tmp_path, config)
    assert call(capsys, "run", str(engine), "--prompt", "a", "--json", *options)[0] == 0
    assert shaped(fake) == expected
    assert [*fake.submitted.values()][-1].max_tokens == 64


@pytest.mark.parametrize(("config", "shown"), [(CONFIG, {**SAID, "max_tokens": LENGTH}), ({}, {})])
def test_inspect_shows_them(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    config: dict[str, Any],
    shown: dict[str, Any],
) -> None:
    monkeypatch.setattr(native, "weight_reads", lambda engine: {"bytes": 1, "mixtures": []})
    engine = str(engine_with(tmp_path, config))
    assert json.loads(call(capsys, "inspect", engine, "--json")[1])["sampling_defaults"] == shown
    out = call(capsys, "inspect", engine)[1]
    table = out.partition("Sampling")[2].partition("Passes")[0].split()
    told = [word for name, value in shown.items() for word in (name, f"{value:.6g}")]
    assert table == (told or ["defaults", "neutral,", "the", "model", "names", "none"])


def test_serve_tells_of_them_in_its_log(llm: LLM, caplog: pytest.LogCaptureFixture) -> None:
    from tensorwright.runtime.commands.serve import note_defaults

    with caplog.at_level(logging.INFO, "tensorwright.server"):
        note_defaults({"model": llm})
    (record,) = (record for record in caplog.records if record.name == "tensorwright.server")
    assert record.facts == {"model": "model", "sampling_defaults": {**SAID, "max_tokens": LENGTH}}  # type: ignore[attr-defined]
