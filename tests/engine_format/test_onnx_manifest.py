"""io.json of target onnx is read as it was written, and what is wrong in it is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tensorwright.engine_format.onnx_manifest import INPUTS, CacheLayer, OnnxManifest
from tensorwright.errors import EngineError

PATH = Path("engine/onnx/io.json")
LAYER = CacheLayer("past_k.0", "past_v.0", "present_k.0", "present_v.0", 2, 16, "float16", 0)
MANIFEST = OnnxManifest(
    (LAYER, replace(LAYER, key="past_k.1", window=8)), "float16", 257, 64, 23, {"com.microsoft": 1},
    dict.fromkeys(INPUTS, "int32"),
)  # fmt: skip


@pytest.mark.parametrize("manifest", [MANIFEST, replace(MANIFEST, flat_positions=True, logits="rows")])
def test_it_is_read_as_it_was_written(manifest: OnnxManifest) -> None:
    assert OnnxManifest.from_dict(manifest.to_dict(), PATH) == manifest


def test_the_cache_of_a_sequence() -> None:
    assert MANIFEST.position_bytes == 2 * 2 * 2 * 16 * 2
    assert MANIFEST.to_dict()["slot_bytes"] == 64 * MANIFEST.position_bytes


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "version 2, this tensorwright reads 1"),
        ({"version": None}, "version None"),
        ({"inputs": {}}, "'token_ids' is missing or of the wrong type"),
        ({"inputs": {**MANIFEST.inputs, "token_ids": "float32"}}, r"'token_ids' \('float32'\) is missing"),
        ({"positions_shape": "[rows]"}, r"'positions_shape' \('\[rows\]'\) is missing"),
        ({"cache": 3}, "is missing or of the wrong type"),
        ({"cache": [LAYER.to_dict(64) | {"head_dim": 0}]}, r"'head_dim' \(0\)"),
        ({"cache": [LAYER.to_dict(64) | {"dtype": "bfloat16"}]}, r"'dtype' \('bfloat16'\)"),
        ({"cache": [LAYER.to_dict(64) | {"key": 5}]}, r"'key' \(5\)"),
        ({"logits": None}, r"'logits' \(None\)"),
        ({"max_seq_len": True}, r"'max_seq_len' \(True\)"),
        ({"domains": {"com.microsoft": "1"}}, r"'com.microsoft' \('1'\)"),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(EngineError, match=message):
        OnnxManifest.from_dict(MANIFEST.to_dict() | change, PATH)
