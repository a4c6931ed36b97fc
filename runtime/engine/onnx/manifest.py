"""Reads onnx/io.json of an opened engine and compares it with config.json."""

from __future__ import annotations

from tensorwright.engine_format.file_names import ONNX_IO
from tensorwright.engine_format.onnx_manifest import OnnxManifest
from tensorwright.runtime.engine.engine_dir import EngineDir


def read_io(engine: EngineDir) -> OnnxManifest:
    """Returns the manifest. Raises EngineError if it is wrong, or comes from another build than config.json."""
    manifest = OnnxManifest.from_dict(engine.read_json(ONNX_IO), engine.path / ONNX_IO)
    facts = {name: getattr(manifest, name) for name in ("dtype", "vocab_size", "max_seq_len")}
    sizes = {"block_size": manifest.max_seq_len, "kv_block_bytes": manifest.slot_bytes}
    engine.require_same_build(ONNX_IO, facts | sizes)
    return manifest
