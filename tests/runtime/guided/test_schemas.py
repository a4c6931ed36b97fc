"""Random JSON schemas: each gives the bundled model's output that it admits, or an error at submission."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema_rs

from support.random_schemas import SchemaMaker
from support.waiting import PATIENCE
from tensorwright import LLM, GuidedDecodingParams, SamplingParams
from tensorwright.errors import InvalidRequestError
from tensorwright.runtime.guided.reader import guided_vocabulary

SCHEMAS = 100
PROMPT = "Once upon a time there was a JSON value: "


def schema_params(number: int, schema: dict[str, Any], blanks: dict[int, float]) -> SamplingParams:
    """Half of them greedy."""
    guide = GuidedDecodingParams(json=schema)
    return SamplingParams(max_tokens=80, temperature=number % 2, seed=number, logit_bias=blanks, guided_decoding=guide)


def blanks_of(llm: LLM) -> dict[int, float]:
    """A model as small as this likes nothing better, which only takes time."""
    tokenizer = llm.engine.tokenizer
    assert tokenizer is not None
    return {token: -30.0 for token in range(tokenizer.vocab_size) if tokenizer.decode([token]).isspace()}


def error_at_submission(llm: LLM, params: SamplingParams, handles: list[Any]) -> str:
    """Empty if there is none; then the request's handle is added."""
    try:
        handles.append(llm.generate_async(PROMPT, params))
    except InvalidRequestError as error:
        return str(error)
    return ""


def begins(llm: LLM, params: SamplingParams, tokens: list[int]) -> bool:
    """Whether a fresh matcher of the library takes the tokens."""
    assert params.guided_decoding is not None
    matcher = guided_vocabulary(llm.engine).compile(params.guided_decoding).start(False).matcher
    return matcher.consume(tokens)


def test_random_schemas(pico_engine: Path) -> None:
    """What is whole is told by a validator that knows nothing of grammars."""
    with LLM(pico_engine, kv_cache_memory="256MiB", max_batch_size=64, threads=1) as llm:
        followed: list[tuple[dict[str, Any], SamplingParams]] = []
        handles: list[Any] = []
        blanks = blanks_of(llm)
        for seed in range(SCHEMAS):
            schema, must_fail = SchemaMaker(seed).schema()
            params = schema_params(seed, schema, blanks)
            error = error_at_submission(llm, params, handles)
            assert bool(error) == must_fail, (schema, error)
            assert must_fail == error.startswith("guided_decoding: json cannot be followed: "), error
            if not error:
                followed.append((schema, params))
        cut = 0
        for (schema, params), handle in zip(followed, handles, strict=True):
            output = handle.result(PATIENCE).outputs[0]
            assert output.finish_reason in ("stop", "length")
            if output.finish_reason == "stop":
                check = jsonschema_rs.Draft202012Validator(schema, validate_formats=True)
                assert check.is_valid(json.loads(output.text)), (schema, output.text)
            else:
                assert begins(llm, params, output.token_ids), (schema, output.text)
                cut += 1
    assert 10 < SCHEMAS - len(followed) < 25
    assert cut < 27
