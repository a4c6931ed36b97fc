"""The list of what is used of TensorRT's bindings, against the code, the installed package and the public sources."""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path
from typing import Any

import pytest

from support.places import ROOT
from tensorwright.engine_format.tensorrt_calls import CALLS, RTX_CALLS, missing_calls

USERS = (
    *sorted((ROOT / "builder/emit/tensorrt").glob("*.py")),
    *sorted((ROOT / "runtime/engine/tensorrt").glob("*.py")),
    *(ROOT / "plugins/gpu" / f"{name}.py" for name in ("creators", "tensorrt_base", "tensorrt_op")),
)
SOURCES = "TENSORRT_SOURCES"
"""The variable that names a checkout of github.com/NVIDIA/TensorRT, whose python/src are the public bindings."""
NAMES = {name for table in (CALLS, RTX_CALLS) for owner, members in table.items() for name in (owner, *members)}


def test_the_installed_package_has_all_of_it() -> None:
    trt = pytest.importorskip("tensorrt_rtx")
    assert missing_calls(trt, "tensorrt-rtx") == []


def test_the_code_uses_no_other_name_of_the_module() -> None:
    trt = pytest.importorskip("tensorrt_rtx")
    found = {}
    for path in USERS:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        of_module = {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and re.search(r"(^|\.)_?trt$", ast.unparse(node.value))
        }
        found |= {name: path.name for name in of_module if name not in NAMES and not name.startswith("__")}
    assert {name for name in found if hasattr(trt, name)} == {"get_plugin_registry"}


def test_each_name_is_used() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in USERS)
    members = {n for table in (CALLS, RTX_CALLS) for owner, names in table.items() for n in names or (owner,)}
    assert [name for name in sorted(members) if not re.search(rf"\b{name}\b", text, re.IGNORECASE)] == []


def test_what_a_package_lacks_is_named() -> None:
    class Nothing:
        class Builder:
            create_network = None

    found = missing_calls(Nothing, "tensorrt")
    assert "Builder.build_serialized_network" in found
    assert "Builder.create_network" not in found
    assert "ICudaEngine" in found
    assert "CudaGraphStrategy" not in found
    assert "CudaGraphStrategy" in missing_calls(Nothing, "tensorrt-rtx")


@pytest.mark.skipif(SOURCES not in os.environ, reason=f"{SOURCES} names no checkout of NVIDIA/TensorRT")
def test_the_public_sources_of_the_bindings_have_the_names_of_both() -> None:
    sources: Any = Path(os.environ[SOURCES]) / "python" / "src"
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources.rglob("*.cpp"))
    of_both = {name for owner, members in CALLS.items() for name in (owner, *members)}
    assert sorted(name for name in of_both if f'"{name}"' not in text) == []
