"""Says when two engines may exchange blocks: the same plan and weights, and kernels that compute the same bits."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from tensorwright.errors import TransferError
from tensorwright.runtime.engine import native
from tensorwright.runtime.engine.engine_dir import EngineDir
from tensorwright.runtime.engine.fingerprint import files_fingerprint, kernels_fingerprint


@dataclass(frozen=True)
class Identity:
    """What two engines must have in common.

    fingerprint: a checksum of the checksums of plan and weights; the plan has the cache's dtype and layout.
    kernels: a checksum of the names of the kernels that run. Most kernels compute the same bits on every processor, but
    not all do, so blocks go only between engines that run the same.
    block_size: the positions of a block. block_bytes: by cache group, the bytes of a block over the group's layers.
    windows: by cache group; 0 for none. state_bytes: of one sequence's states; 0 for a model without recurrent layers.
    """

    fingerprint: str
    kernels: str
    block_size: int
    block_bytes: tuple[int, ...]
    windows: tuple[int, ...]
    state_bytes: int

    def as_fields(self) -> dict[str, Any]:
        """Returns the identity as it is sent."""
        return json.loads(json.dumps(asdict(self)))

    def require_same(self, fields: Any) -> None:
        """Raises TransferError, which names the first difference, unless a peer's identity is this one."""
        own = self.as_fields()
        if not isinstance(fields, dict) or set(fields) != set(own):
            raise TransferError("a peer must tell its engine's identity, and did not")
        for name, value in own.items():
            if fields[name] != value:
                raise TransferError(
                    f"both engines must be the same, and differ in {name}: {value!r:.80} here, {fields[name]!r:.80} "
                    "there; serve copies of one engine, on processors that run the same kernels"
                )


def identity_of(engine: EngineDir, layout: dict[str, Any]) -> Identity:
    """Returns the identity of an opened engine of target cpu. layout: what `_runtime.PrefixTransfers.layout` says."""
    return Identity(
        fingerprint=files_fingerprint(engine),
        kernels=kernels_fingerprint(native.dispatch_choices()),
        block_size=layout["block_size"],
        block_bytes=tuple(layout["block_bytes"]),
        windows=tuple(layout["windows"]),
        state_bytes=layout["state_bytes"],
    )
