"""The table of targets: every module of the builder and of the runtime is for one of them."""

from __future__ import annotations

from tensorwright.builder.target import interface as builder_targets
from tensorwright.engine_format.dtypes import DTYPES, ITEM_BYTES, full_name
from tensorwright.engine_format.targets import DTYPE_CHOICES, TARGET_NAMES, TARGETS, TENSORRT_TARGETS
from tensorwright.runtime.engine.executors import EXECUTORS


def test_the_builder_and_the_runtime_have_the_targets_of_the_table() -> None:
    assert tuple(builder_targets.MODULES) == TARGET_NAMES == ("cpu", *EXECUTORS)
    assert set(TENSORRT_TARGETS) < set(TARGET_NAMES)


def test_the_largest_file_is_one_of_the_files() -> None:
    assert all(target.weights in target.files for target in TARGETS.values())


def test_types_are_known() -> None:
    assert set(DTYPE_CHOICES) == {"auto", *DTYPES}
    assert all(set(target.dtypes) <= set(ITEM_BYTES) for target in TARGETS.values())
    assert [full_name(name) for name in ("bf16", "half", "float32", "int7")] == [
        "bfloat16", "float16", "float32", "int7",
    ]  # fmt: skip
