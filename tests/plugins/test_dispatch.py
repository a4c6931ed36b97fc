"""Which kernel runs: features, TENSORWRIGHT_ISA, tables and explanations."""

from __future__ import annotations

import pytest

from tensorwright.errors import IsaError
from tensorwright.plugins.registry import PLUGINS
from tensorwright.runtime import _runtime

LEVELS = ("scalar", "avx2", "avx512")
FAMILIES = 19
OTHER_NAMES = {"avxvnni": "avx2"}
"""Instructions that belong to a level whose name they do not begin with."""


def lacks(level: str) -> bool:
    return level != "scalar" and not _runtime.cpu_features()[level]


def level_of(kernel: str) -> int:
    last = kernel.rpartition("_")[2]
    found = [i for i, name in enumerate(LEVELS) if OTHER_NAMES.get(last, last).startswith(name)]
    assert found, f"{kernel} does not name its instruction set"
    return max(found)


@pytest.mark.parametrize("level", LEVELS)
def test_a_level_caps_every_choice(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORWRIGHT_ISA", level)
    if lacks(level):
        with pytest.raises(IsaError, match=f"TENSORWRIGHT_ISA={level} must name .* it lacks"):
            _runtime.isa()
        return
    assert _runtime.isa() == level
    choices = _runtime.explain_dispatch()
    assert len(choices) == FAMILIES
    for _, taken, _ in choices:
        assert level_of(taken) <= LEVELS.index(level)


def test_refusals_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORWRIGHT_ISA", "scalar")
    refused = {family: reasons for family, _, reasons in _runtime.explain_dispatch()}["matmul bfloat16"]
    assert [r.split(":")[0] for r in refused] == [n for n, isa, _ in _runtime.matmul_table(1) if isa != "scalar"]
    for reason in refused:
        assert "which this processor lacks" in reason or "above the selected level scalar" in reason


@pytest.mark.parametrize("name", ["AVX512", "avx10", "sse2", " scalar"])
def test_an_unknown_level_is_an_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORWRIGHT_ISA", name)
    with pytest.raises(IsaError, match="scalar, avx2 or avx512"):
        _runtime.isa()
    with pytest.raises(IsaError, match=name):
        _runtime.explain_dispatch()


def test_unset_and_empty_take_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    best = next(level for level in reversed(LEVELS) if not lacks(level))
    monkeypatch.setenv("TENSORWRIGHT_ISA", "")
    assert _runtime.isa() == best
    monkeypatch.delenv("TENSORWRIGHT_ISA")
    assert _runtime.isa() == best
    taken = {family: name for family, name, _ in _runtime.explain_dispatch()}
    for code, dtype in enumerate(("float32", "bfloat16")):
        assert taken[f"matmul {dtype}"] == next(n for n, _, runnable in _runtime.matmul_table(code) if runnable)


def tables() -> list[list[tuple[str, str, bool]]]:
    floats = [table(dtype) for table in (_runtime.matmul_table, _runtime.embedding_table) for dtype in (0, 1)]
    quantized = [_runtime.quantized_matmul_table(dtype) for dtype in (3, 4)]
    rest = [_runtime.swiglu_table(), _runtime.quantize_rows_table(), _runtime.quantize_weights_table()]
    return floats + quantized + rest


def test_tables_are_best_first_and_end_with_the_reference() -> None:
    for table in tables():
        levels = [LEVELS.index(isa) for _, isa, _ in table]
        assert levels == [level_of(name) for name, _, _ in table]
        assert levels == sorted(levels, reverse=True)
        name, isa, runnable = table[-1]
        assert (isa, runnable) == ("scalar", True)
        assert name.endswith("_scalar")


def test_registry_names_every_plugin_by_its_op() -> None:
    for name, plugin in PLUGINS.items():
        assert name == plugin.NAME
        assert isinstance(plugin.ATTRS, dict)
        assert callable(plugin.infer)
        assert callable(plugin.reference)
