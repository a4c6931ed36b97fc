"""Options of `tensorwright serve` that each engine may have of its own."""

from __future__ import annotations

import pytest

from tensorwright.options.by_engine import by_engine
from tensorwright.options.declare import find
from tensorwright.options.engine import EngineFields

PARSER = find(EngineFields, "tool_parser")


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("auto", {"a": "auto", "b": "auto"}),
        ("hermes", {"a": "hermes", "b": "hermes"}),
        ("b=mistral", {"a": "auto", "b": "mistral"}),
        ("a=none,glm", {"a": "none", "b": "glm"}),
        ("hermes,a=phi4,b=glm", {"a": "phi4", "b": "glm"}),
    ],
)
def test_an_engines_own_value_comes_first(text: str, values: dict[str, str]) -> None:
    assert by_engine(text, ["a", "b"], PARSER) == values
