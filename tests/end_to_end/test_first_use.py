"""Every command takes a hub name, a model directory or an engine; an engine of a model is built on its first use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.command_line import call
from support.fake_hub import FakeHub
from support.tiny_models import make_variant
from tensorwright import LLM
from tensorwright.errors import InvalidOptionError

LENGTH = ("--max-seq-len", "40")


def asked(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[dict[str, Any], str]:
    code, out, err = call(capsys, *arguments, "--json")
    assert code == 0, err
    return json.loads(out), err


def test_all_doors(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "engines"))
    monkeypatch.chdir(tmp_path)
    hub.add("org/tiny", make_variant(tmp_path / "made", "llama", seed=3), "v1")
    (tmp_path / "text.txt").write_text(" ".join(f"t{i % 90}" for i in range(64)))
    name = ("org/tiny", "--revision", "v1", *LENGTH)
    ran, err = asked(capsys, "run", *name, "--prompt", "t1 t2 t3", "--max-tokens", "4")
    assert "building the engine of" in err
    assert len(ran["token_ids"]) == 4
    scored, err = asked(capsys, "eval", *name, "text.txt", "--window", "32")
    assert "building" not in err
    assert scored["engine"]["max_seq_len"] == 40
    timed, err = asked(
        capsys, "bench", "latency", *name, "--input-len", "8", "--output-len", "4", "--requests", "1", "--warmup", "0"
    )
    assert "building" not in err
    assert timed["engine"]["path"] == scored["engine"]["path"]
    with LLM("org/tiny", revision="v1", max_seq_len=40, kv_cache_memory="1MiB") as llm:
        assert str(llm.engine.path) == scored["engine"]["path"]
    engine = scored["engine"]["path"]
    with LLM(engine, max_seq_len=40, kv_cache_memory="1MiB"):
        pass
    with pytest.raises(InvalidOptionError, match=r"max_seq_len=41: .* is an engine of at most 40 tokens"):
        LLM(engine, max_seq_len=41)
    code, _, err = call(capsys, "run", engine, "--revision", "v1", "--prompt", "t1")
    assert (code, "is for a model of the hub" in err) == (2, True)
    code, _, err = call(capsys, "run", "org/tiny", "--prompt", "t1")
    assert (code, "the hub has no such model or revision" in err) == (2, True), err
