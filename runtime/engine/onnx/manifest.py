"""Reads onnx/io.json of an opened engine and compares it with config.json."""

from __future__ import annotations

from tensorwright.engine_format.checksums import REMEDY
from tensorwright.engine_format.file_names import CONFIG, ONNX_IO
from tensorwright.engine_format.onnx_manifest import OnnxManifest
from tensorwright.errors import EngineError
from tensorwright.runtime.engine.engine_dir import EngineDir


def read_io(engine: EngineDir) -> OnnxManifest:
    """Returns the manifest. Raises EngineError if it is wrong, or comes from another build than config.json."""
    manifest = OnnxManifest.from_dict(engine.read_json(ONNX_IO), engine.path / ONNX_IO)
    slot = manifest.position_bytes * engine.max_seq_len
    for name, value in (("block_size", engine.max_seq_len), ("kv_block_bytes", slot)):
        if getattr(engine, name) != value:
            raise EngineError(
                f"{engine.path / CONFIG}: {name} is {getattr(engine, name)}, but {ONNX_IO} comes to {value}: files "
                f"of two builds are mixed; {REMEDY}"
            )
    return manifest
