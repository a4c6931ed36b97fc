"""The options of the tiers of the prefix cache, from LLM to the files: what is kept, for whom, and what is refused."""

from __future__ import annotations

import logging
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.toy_engine import write_toy_engine
from tensorwright import LLM, SamplingParams
from tensorwright.errors import InvalidOptionError, OutOfMemoryError, TensorwrightError
from tensorwright.runtime.engine.tier_secret import read_secret
from tensorwright.runtime.serving.server.clients import salt_secret

PROMPT = {"prompt_token_ids": list(range(1, 101))}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_engine(tmp_path_factory.mktemp("tiers") / "engine")


def start(engine: Path, **options: Any) -> LLM:
    return LLM(engine, **{"threads": 1, "kv_cache_memory": "2MiB", "max_num_tokens": 64, **options})


def cached(llm: LLM, salt: str | None = None) -> int:
    """How many tokens of the prompt the engine needs not compute."""
    return llm.generate(PROMPT, SamplingParams(max_tokens=2, cache_salt=salt)).metrics.cached_tokens


def test_prefixes_outlive_the_engine_for_their_salt(engine: Path, tmp_path: Path) -> None:
    with start(engine, prefix_cache_disk=tmp_path / "new" / "cache") as llm:
        assert cached(llm, "mine") == 0
    with start(engine, prefix_cache_disk=tmp_path / "new" / "cache") as llm:
        assert (cached(llm), cached(llm, "yours")) == (0, 0)
        assert cached(llm, "mine") == 96
        stats = llm.get_stats()
        assert (stats["tier_disk_hits"], stats["prefix_fetches"], stats["prefix_fetch_tokens"]) == (3, 1, 96)
    kept = [path for path in (tmp_path / "new" / "cache").rglob("*") if path.is_file()]
    assert {path.name for path in kept} == {"secret", "lock", "1.kv", "2.kv"}
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in kept)


def test_another_build_finds_nothing(engine: Path, tmp_path: Path) -> None:
    from support.toy_engine import make_toy

    with start(engine, prefix_cache_disk=tmp_path / "cache") as llm:
        cached(llm)
    other = write_toy_engine(tmp_path / "other", make_toy(layers=1))
    with start(other, prefix_cache_disk=tmp_path / "cache") as llm:
        assert cached(llm) == 0


def test_a_damaged_file_is_told_and_answers_go_on(
    engine: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with start(engine, prefix_cache_disk=tmp_path) as llm:
        expected = llm.generate(PROMPT, SamplingParams(max_tokens=5, temperature=0)).outputs
    (kept,) = tmp_path.rglob("*.kv")
    kept.write_bytes(kept.read_bytes()[:-1])
    with caplog.at_level(logging.WARNING), start(engine, prefix_cache_disk=tmp_path) as llm:
        assert llm.generate(PROMPT, SamplingParams(max_tokens=5, temperature=0)).outputs == expected
        assert llm.get_stats()["tier_disk_dropped"] == 1
    assert "dropped a file" in caplog.text
    assert "was cut off" in caplog.text


def test_one_running_copy_has_a_directory(engine: Path, tmp_path: Path) -> None:
    with start(engine, prefix_cache_disk=tmp_path), pytest.raises(InvalidOptionError, match="another running copy"):
        start(engine, prefix_cache_disk=tmp_path)
    start(engine, prefix_cache_disk=tmp_path).shutdown()


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"prefix_cache_disk_size": "1GiB"}, InvalidOptionError, "prefix_cache_disk, which is not set"),
        ({"prefix_cache_ttl": 5}, InvalidOptionError, "neither is set"),
        ({"prefix_cache_memory": "1MiB", "prefix_cache_ttl": 0}, InvalidOptionError, "positive number of seconds"),
        ({"prefix_cache_memory": 0}, InvalidOptionError, "prefix_cache_memory must be a positive number"),
        ({"prefix_cache_memory": "900TiB"}, OutOfMemoryError, "prefix_cache_memory is"),
        ({"prefix_cache_disk": " "}, InvalidOptionError, "path of a directory"),
        ({"prefix_cache_disk": "/proc/nowhere"}, InvalidOptionError, "prefix_cache_disk=/proc/nowhere"),
        ({"prefix_cache_memory": "1MiB", "enable_prefix_caching": False}, InvalidOptionError, "which is off"),
    ],
)
def test_what_cannot_be_is_refused(
    engine: Path, options: dict[str, Any], error: type[TensorwrightError], words: str
) -> None:
    with pytest.raises(error, match=words):
        start(engine, **options)


def test_a_secret_is_made_once_and_checked(tmp_path: Path) -> None:
    first = read_secret(str(tmp_path / "cache"))
    assert read_secret(str(tmp_path / "cache")) == first
    assert read_secret("") != read_secret("")
    (tmp_path / "cache" / "secret").write_bytes(first[:5])
    with pytest.raises(InvalidOptionError, match="must have 32 bytes, has 5"):
        read_secret(str(tmp_path / "cache"))


def test_keys_of_a_server_find_their_prefixes_after_a_restart(tmp_path: Path) -> None:
    def engines(disk: str | None) -> list[Any]:
        tiers = None if disk is None else SimpleNamespace(disk=disk)
        return [SimpleNamespace(options=SimpleNamespace(tiers=tiers))]

    assert salt_secret(engines(str(tmp_path))) == salt_secret(engines(str(tmp_path)))
    assert salt_secret(engines(str(tmp_path))) != read_secret(str(tmp_path))
    assert salt_secret(engines(None)) != salt_secret(engines(None))
