"""An open engine stays what it was, whatever becomes of its folder; one that changes while it opens is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.fake_runtime import write_checksums, write_engine
from tensorwright.errors import EngineError
from tensorwright.runtime.api.llm import LLM
from tensorwright.runtime.engine import native
from tensorwright.runtime.engine.engine_dir import open_engine
from tensorwright.runtime.engine.options import EngineOptions
from tensorwright.runtime.requests.sampling_params import GuidedDecodingParams, SamplingParams

TEMPLATE = "{{ bos_token }}{% for message in messages %}{{ message.content }}{% endfor %}"


def write_other_texts(engine: Path, template: str, eos: int, temperature: float) -> None:
    """Changes what the engine's text files say, with checksums that hold."""
    texts = {
        "chat_template.jinja": template,
        "generation_config.json": json.dumps({"eos_token_id": eos, "temperature": temperature}),
        "tokenizer_config.json": json.dumps({"bos_token": "\n"}),
    }
    for name, text in texts.items():
        (engine / name).write_text(text)
    old = [line.split("  ")[2] for line in (engine / "checksums.txt").read_text().splitlines()]
    write_checksums(engine, sorted({*old, *texts} - {"."}))


def answers(llm: LLM) -> list[Any]:
    """Each kind of request that looks at a text file of the engine, without what depends on the clock."""
    short = SamplingParams(max_tokens=12, temperature=0.0)
    guided = SamplingParams(max_tokens=12, temperature=0.0, guided_decoding=GuidedDecodingParams(choice=["def", "cls"]))
    outputs = [
        llm.generate("def read_file(", short),
        llm.chat([{"role": "user", "content": "class A"}], short),
        llm.generate("x = ", guided),
    ]
    named = asdict(llm.default_sampling_params), llm.engine.created, llm.tokenizer.encode("import os")
    return [*((output.prompt_token_ids, output.outputs) for output in outputs), named]


def test_a_replaced_folder_changes_nothing_that_is_served(pico_engine: Path, tmp_path: Path) -> None:
    place, other = tmp_path / "engine", tmp_path / "other"
    shutil.copytree(pico_engine, place)
    write_other_texts(place, TEMPLATE, eos=0, temperature=0.5)
    shutil.copytree(place, other)
    # An end-of-sequence token that comes up at once, another template, other defaults, other named tokens.
    write_other_texts(other, "other" + TEMPLATE, eos=12, temperature=1.5)
    (other / "config.json").touch()
    with LLM(place, kv_cache_memory="16MiB") as llm:
        before = answers(llm)
    with LLM(place, kv_cache_memory="16MiB") as llm:  # nothing is asked of it before its folder is gone
        place.rename(tmp_path / "aside")
        assert answers(llm) == before
        place.mkdir()
        (place / "generation_config.json").write_text("{")
        assert answers(llm) == before
        shutil.rmtree(place)
        shutil.rmtree(tmp_path / "aside")
        other.rename(place)
        assert answers(llm) == before
    with LLM(place, kv_cache_memory="16MiB") as llm:
        assert answers(llm) != before


def rewrite(file: Path) -> None:
    """As one who copies over an engine does."""
    with file.open("r+b") as into:
        into.write(bytes(64))


def replace(file: Path) -> None:
    """Another file of the same size."""
    file.with_name("new").write_bytes(file.read_bytes())
    file.with_name("new").rename(file)


@pytest.mark.parametrize("change", [rewrite, replace, Path.unlink])
@pytest.mark.parametrize("name", ["cpu/weights.bin", "cpu/plan.bin"])
def test_what_is_mapped_is_what_was_checked(
    pico_engine: Path, tmp_path: Path, name: str, change: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights or plan change after the check of their checksum, while the engine is started."""
    shutil.copytree(pico_engine, tmp_path / "engine")
    engine = open_engine(tmp_path / "engine")
    runtime, made = native.load_module(), []

    def start(*given: Any) -> Any:
        made.append(runtime.Engine(*given))
        change(engine.path / name)
        return made[-1]

    module = SimpleNamespace(Engine=start, EngineOptions=runtime.EngineOptions, topology=runtime.topology)
    monkeypatch.setattr(native, "load_module", lambda: module)
    options = EngineOptions(1 << 24, 4, 64, 64, 4, 1, "map", True, 8)
    with pytest.raises(EngineError, match=f"{Path(name).name}: was changed or replaced while the engine was opened"):
        native.create_engine(engine, options)
    assert made[0].stopped


def test_texts_are_read_once_and_used_as_they_were_hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No text file of an engine is opened twice: what was hashed could else be another than what is used."""
    root = write_engine(tmp_path / "engine", more={"chat_template.jinja": TEMPLATE, "tokenizer_config.json": "{}"})
    opened: list[str] = []
    true_open = Path.open

    def note(path: Path, *given: Any, **named: Any) -> Any:
        if path.is_relative_to(root):
            opened.append(str(path.relative_to(root)))
        return true_open(path, *given, **named)

    monkeypatch.setattr(Path, "open", note)
    engine = open_engine(root)
    assert sorted(opened) == sorted(set(opened))
    opened.clear()
    assert engine.tokenizer is not None
    assert engine.chat_templates == {"default": TEMPLATE}
    assert (engine.eos_token_ids, engine.special_tokens, engine.created) == ([256], [], engine.created)
    assert engine.read_json("generation_config.json") == {}
    assert opened == []
