"""The pages on serving are whole: every metric, field, option and Triton tensor that there is, and none that is not."""

from __future__ import annotations

import ast
import re
from itertools import pairwise

from support.doc_words import FLAG, ROOT, Commands, Page
from tensorwright.builder.cli import build_engine
from tensorwright.runtime.base import request_bounds
from tensorwright.runtime.commands.cli import cli
from tensorwright.runtime.requests import metrics
from tensorwright.runtime.serving.server.chat_request import ChatCompletionRequest
from tensorwright.runtime.serving.server.completion_request import CompletionRequest
from tensorwright.runtime.serving.server.messages_request import MessagesRequest
from tensorwright.runtime.serving.server.responses_request import ResponsesRequest
from tensorwright.runtime.serving.triton.interfaces import INTERFACES

METRIC = re.compile(r"\btensorwright_[a-z_]+\b")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def text_of(name: str) -> str:
    return (ROOT / f"docs/{name}.md").read_text(encoding="utf-8")


def test_every_metric_is_explained() -> None:
    """And no metric is named anywhere that there is not."""
    known = {metric.name for metric in (*metrics.GAUGES_AND_TOTALS, *metrics.FLEET.values(), *metrics.OBSERVED)}
    for file in ("server/exposition.py", "router/handing.py"):
        known |= set(METRIC.findall((ROOT / "runtime/serving" / file).read_text(encoding="utf-8")))
    pages = [Page(text_of(name)) for name in ("operating", "prefill-decode")]
    explained = {name for each in pages for line in each.code for name in METRIC.findall(line)}
    assert known <= explained
    for path in PAGES:
        named = {name for line in Page(path.read_text(encoding="utf-8")).code for name in METRIC.findall(line)}
        assert {re.sub(r"_(sum|count|bucket)$", "", name) for name in named} <= known, path.name


def test_every_field_of_the_server_is_listed() -> None:
    """What it takes in the tables of fields, what it refuses under that heading; and no other field."""
    text = text_of("serving")
    taken, _, refused = text.partition("## What is refused")
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", taken, re.MULTILINE)
    listed = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    fields = {**CompletionRequest.model_fields, **ChatCompletionRequest.model_fields}
    wanted = {name for name, field in fields.items() if field.annotation is not type(None)}
    assert listed == wanted
    assert not [name for name in fields.keys() - wanted if f"`{name}`" not in refused]


def test_every_field_of_the_apis_for_agents_is_listed() -> None:
    """Each API's in its own part of the page; what it refuses or leaves out under that heading."""
    taken, _, refused = text_of("agents").partition("## What is refused")
    refused = refused.partition("\n## ")[0]
    responses, _, messages = taken.partition("\n## Messages")
    for text, model in ((responses, ResponsesRequest), (messages, MessagesRequest)):
        rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", text, re.MULTILINE)
        listed = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
        fields = model.model_fields
        wanted = {name for name, field in fields.items() if field.annotation is not type(None)}
        assert listed == wanted
        assert not [name for name in fields.keys() - wanted if f"`{name}`" not in refused]


def bound_rows() -> list[str]:
    """The table of bounds, as the module says them: each number's docstring, and the number."""
    tree = ast.parse((ROOT / "runtime/base/request_bounds.py").read_text(encoding="utf-8")).body
    rows = []
    for assignment, text in pairwise(tree):
        if isinstance(assignment, ast.Assign):
            assert isinstance(text, ast.Expr), "every bound has its docstring below it"
            (name,) = assignment.targets
            assert isinstance(name, ast.Name)
            value = getattr(request_bounds, name.id)
            shown = f"{value[0]:g} to {value[1]:g}" if isinstance(value, tuple) else readable(value)
            rows.append(f"| {' '.join(ast.literal_eval(text.value).split())} | {shown} |")
    return rows


def readable(value: float) -> str:
    """2**64 - 1 and 1e+07 rather than their digits."""
    power = f"2**{(value + 1).bit_length() - 1} - 1" if isinstance(value, int) and value > 2**60 else ""
    return power or (f"{value:g}" if isinstance(value, float) else str(value))


def test_every_bound_of_a_request_is_listed_as_it_is() -> None:
    _, _, rest = text_of("serving").partition("## Bounds\n")
    table = re.findall(r"^\| .* \|$", rest.partition("\n## ")[0], re.MULTILINE)
    assert table[1:] == bound_rows()


def test_every_option_of_the_server_is_explained() -> None:
    names = (
        "serving", "page", "operating", "prefill-decode", "ranks", "replicas", "tools", "lora", "agents",
        "prefix-cache", "cuda", "long-contexts",
    )  # fmt: skip
    pages = [Page(text_of(name)) for name in names]
    named = {flag for each in pages for line in each.shell for flag in FLAG.findall(line)}
    for command in ("tensorwright serve", "tensorwright route"):
        assert Commands(cli, build_engine).flags[command] - named == {"--help"}


def test_every_tensor_of_the_triton_models_is_listed() -> None:
    text = text_of("migrating-from-tensorrt-llm")
    tensors = {tensor.name for each in INTERFACES.values() for tensor in (*each.inputs, *each.outputs)}
    assert len(tensors) > 100
    assert sorted(name for name in tensors if f"`{name}`" not in text) == []
