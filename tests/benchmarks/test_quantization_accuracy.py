"""benchmarks/quantization_accuracy.py without engines: the rows, the figures that are kept, the tables of the page."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "benchmarks" / part) for part in ("formats", "")]

import format_tables  # noqa: E402
import quantization_accuracy as tool  # noqa: E402
from format_rows import BASE, REFERENCE, ROWS, folder_of, options_of  # noqa: E402

from tensorwright.engine_format.calibrations import CALIBRATIONS  # noqa: E402
from tensorwright.engine_format.weight_formats import FORMATS, parse_spec  # noqa: E402

HEAD = {"model": "pico", "windows": 2, "window": 512, "machine": {"cpu": "a processor", "cores": 2}}


def row(perplexity: float, size: int = 1000) -> dict[str, Any]:
    accuracy = {"perplexity": perplexity, "kl_divergence": 0.0123, "top1_agreement": 0.5}
    return {"built": {"seconds": 2.6, "bytes": size}, "accuracy": accuracy}


def test_rows_are_what_a_build_takes() -> None:
    assert len({folder_of(name) for name in ROWS}) == len(ROWS)
    every = [options_of(name) for name in ROWS]
    families = {name.partition(":")[0] for options in every for name in (options.quantize or "").split(",")}
    assert families >= set(FORMATS)
    assert {options.calibrate for options in every} == set(CALIBRATIONS)
    for options in every:
        assert options.quantize is None or parse_spec(options.quantize)
        assert options.kv_cache_dtype in ("auto", "int8", "int4")


def test_a_name_says_all_options() -> None:
    options = options_of("int4:g32,lm_head=int8 + awq + gptq + int4 KV cache")
    assert (options.quantize, options.calibrate) == ("int4:g32,lm_head=int8", "awq+gptq")
    assert (options.dtype, options.kv_cache_dtype) == ("bfloat16", "int4")
    assert options_of(REFERENCE).dtype == "float32"
    assert options_of(BASE + " + int8 KV cache").quantize is None


def test_figures_are_kept_and_never_mixed_with_others(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    figures = tool.Figures(path, HEAD)
    figures.row(BASE).update(row(10.0))
    figures.save()
    assert tool.Figures(path, HEAD).row(BASE) == row(10.0)
    with pytest.raises(SystemExit, match="another windows; name another --out"):
        tool.Figures(path, {**HEAD, "windows": 3})


def test_only_rows_without_figures_are_built_and_an_end_leaves_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[str] = []

    def build_row(model: Path, name: str, folder: Path) -> dict[str, float]:
        built.append(name)
        return {"seconds": 1.0, "bytes": 10}

    monkeypatch.setattr(tool, "warm_up", lambda model: None)
    monkeypatch.setattr(tool, "build_row", build_row)
    monkeypatch.setattr(tool, "compare", lambda reference, folders, parts, say: [{"perplexity": 1.0} for _ in folders])
    figures = tool.Figures(tmp_path / "figures.json", HEAD)
    names = list(ROWS[:5])
    figures.row(names[1]).update(row(10.0))

    def measure(end: float) -> list[str]:
        return tool.measure_accuracy(figures, tmp_path, names, tmp_path, [], at_once=2, end=end)

    assert measure(0.0) == [names[0], *names[2:]]
    assert measure(float("inf")) == []
    assert built == [names[0], *names[2:]]
    assert figures.row(names[1]) == row(10.0)


def test_tables_are_written_between_their_markers() -> None:
    formats = {REFERENCE: row(9.0, 4000), BASE: row(10.0, 2000), "int4:g32": row(10.1, 563)}
    formats["int4:g32"]["speeds"] = {"decode": [10.0, 100.4, 500.0], "prefill": [2000.0, 1000.0, 3000.0]}
    page = "a\n<!-- measured formats -->\nold\n<!-- end of measured formats -->\nb\n"
    page += "<!-- measured methods -->\n<!-- end of measured methods -->\nc\n"
    new = format_tables.written(page, {**HEAD, "rows": {**formats, "int4:g32 + gptq": row(10.05)}})
    assert "| `int4:g32` | 4.50 | 0.0 | 10.100 | +1.00 % | 0.012 | 50.0 % | 3 | 500 | 3000 |" in new
    assert "| `bfloat16` | 16.00 | 0.0 | 10.000 | +0.00 % | 0.012 | 50.0 % | 3 | - | - |" in new
    assert new.index("`int4:g32`") < new.index("\nb\n") < new.index("`int4:g32 + gptq`") < new.index("\nc\n")
    assert "old" not in new
    assert "the best of 3 rounds" in new
    assert format_tables.written(new, {**HEAD, "rows": formats}).startswith("a\n<!-- measured formats -->\n2 windows")
    with pytest.raises(SystemExit, match="formats, methods, has none"):
        format_tables.written("a page", {**HEAD, "rows": formats})


def test_the_page_has_the_markers_and_the_rows_of_the_list() -> None:
    page = tool.PAGE.read_text(encoding="utf-8")
    found = {match["name"]: match[0] for match in format_tables.MARKED.finditer(page)}
    for name, names in format_tables.TABLES.items():
        shown = [line.split("`")[1] for line in found[name].splitlines() if line.startswith("| `")]
        assert shown == [each for each in names if each in shown], f"table {name}: rows that the list does not have"
