"""What a user can say of speculation, and what is refused before an engine opens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tensorwright import LLM
from tensorwright.errors import InvalidOptionError
from tensorwright.options.speculation import MAX_TOKENS, Speculation, read_speculation


@pytest.mark.parametrize(
    ("value", "read"),
    [
        (None, None),
        ("none", None),
        ("ngram", Speculation("ngram")),
        ("ngram,tokens=auto", Speculation("ngram")),
        ("ngram, tokens = 4, min_match=3", Speculation("ngram", tokens=4, min_match=3)),
        ({"method": "ngram", "tokens": 16, "rows": 8}, Speculation("ngram", tokens=16, rows=8)),
        ("suffix,remembered=2048", Speculation("suffix", remembered=2048)),
        ("draft,model=out/a b,tokens=3", Speculation("draft", tokens=3, model="out/a b")),
        ({"method": "draft", "model": Path("out/draft")}, Speculation("draft", model="out/draft")),
        ("heads", Speculation("heads")),
        ({"method": "heads", "tokens": 2, "rows": 9}, Speculation("heads", tokens=2, rows=9)),
        (
            "draft,model=out/draft,kv_cache_memory=2MiB",
            Speculation("draft", model="out/draft", kv_cache_memory=2 << 20),
        ),
    ],
)
def test_what_is_read(value: Any, read: Speculation | None) -> None:
    assert read_speculation(value) == read


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("", "speculative must be none, or ngram or suffix or draft or heads with what it takes"),
        ("medusa", "got method 'medusa'"),
        (3, "got 3"),
        ({"tokens": 3}, "got method None"),
        ("ngram,tokens", "got 'tokens' in"),
        ("ngram,tokens=2,tokens=3", "got 'tokens=3' in"),
        ("ngram,length=3", "method ngram takes tokens, rows, min_match, not length"),
        ("ngram,tokens=0", f"tokens must be auto or a whole number from 1 to {MAX_TOKENS}, got '0'"),
        ("ngram,tokens=17", "got '17'"),
        ({"method": "ngram", "tokens": True}, "got True"),
        ({"method": "ngram", "rows": 1.5}, "rows must be a whole number from 1 to 4096, got 1.5"),
        ("ngram,min_match=1", "min_match must be a whole number from 2 to 32, got '1'"),
        ("ngram,model=out/draft", "method ngram takes tokens, rows, min_match, not model"),
        ("suffix,remembered=10", "remembered must be a whole number from 1024 to 67108864, got '10'"),
        ("heads,model=out/heads", "method heads takes tokens, rows, not model"),
        ("draft", "method draft needs model, the folder of an engine"),
        ("draft,model=", "method draft needs model"),
        ({"method": "draft", "model": 3}, "needs model.*got 3"),
        ("draft,model=out/draft,min_match=3", "takes model, tokens, rows, kv_cache_memory, not min_match"),
        ("draft,model=out/draft,kv_cache_memory=much", "kv_cache_memory.*'much'"),
    ],
)
def test_what_is_refused(value: Any, says: str) -> None:
    with pytest.raises(InvalidOptionError, match=says):
        read_speculation(value)


def test_llm_refuses_before_it_opens_anything(tmp_path: Path) -> None:
    with pytest.raises(InvalidOptionError, match="LLM: speculative must be none, or ngram"):
        LLM(tmp_path / "absent", speculative="guess")


def test_only_some_targets_can_verify(pico_engine_onnx: Path) -> None:
    with pytest.raises(InvalidOptionError, match="speculative needs an engine of target cpu or cuda"):
        LLM(pico_engine_onnx, speculative="ngram")
