"""Damaged plans, as a user meets them: one clear sentence or no harm, never a crash."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support.plan_writer import BF16, PANELS, PlanWriter
from support.ragged import Ragged
from support.toy_llama import ToyLlama
from tensorwright.errors import EngineError
from tensorwright.runtime import _runtime

pytestmark = pytest.mark.computes

REMEDY = "; rebuild the engine with build-engine"


def load(plan: bytes, weights: bytes, folder: Path) -> _runtime.CpuExecutor:
    (folder / "plan.bin").write_bytes(plan)
    (folder / "weights.bin").write_bytes(weights)
    return _runtime.CpuExecutor(str(folder / "plan.bin"), str(folder / "weights.bin"), 1, "map")


@pytest.fixture(scope="module")
def toy() -> PlanWriter:
    return ToyLlama(window=20).plan()


@pytest.mark.parametrize(
    ("offset", "value", "message"),
    [
        (0, b"XXXX", "not a plan"),
        (8, b"\x01\0\0\0", "version must be 3, is 1"),
        (12, b"\x5f\0\0\0", "header_bytes must be 96, is 95"),
        (32, b"\0\0\0\0", "vocab_size must be 1 to 2147483647, is 0"),
        (40, b"\x30\0\0\0", "block_size must be a multiple of 16 that divides 512, is 48"),
        (44, b"\x05\0\0\0", "act_dtype must be 0 .float32. or 1 .bfloat16., is 5"),
        (96, b"\x09\0\0\0", "kv layer 0: group must be below 2, is 9"),
    ],
)
def test_a_wrong_field_is_named(toy: PlanWriter, tmp_path: Path, offset: int, value: bytes, message: str) -> None:
    plan = bytearray(toy.plan_bytes())
    plan[offset : offset + len(value)] = value
    with pytest.raises(EngineError, match=rf"^plan\.bin: .*{message}") as caught:
        load(bytes(plan), bytes(toy.data), tmp_path)
    assert str(caught.value).endswith(REMEDY)


def test_a_weight_of_another_shape_is_named(tmp_path: Path) -> None:
    model = ToyLlama(dtype=BF16)
    plan = model.plan()
    index = next(i for i, w in enumerate(plan.weights) if w[1] == PANELS and w[3] == model.inter)
    dtype, layout, n, k, offset, size, name, reserved = plan.weights[index]
    plan.weights[index] = (dtype, layout, n, k - 2, offset, size - n * 4, name, reserved)
    with pytest.raises(EngineError, match=r"\(matmul\): w must be panels of 64 x 72, is layout 1 of 64 x 70"):
        load(plan.plan_bytes(), bytes(plan.data), tmp_path)


def test_random_damage_is_refused_or_harmless(toy: PlanWriter, tmp_path: Path) -> None:
    """Bits, bytes and words of the plan are changed; whatever still loads must also run a step."""
    sound = np.frombuffer(toy.plan_bytes(), np.uint8)
    rng = np.random.default_rng(5)
    refusals: list[str] = []
    for _ in range(400):
        plan = sound.copy()
        at = int(rng.integers(0, len(plan) - 4))
        plan[at : at + int(rng.integers(1, 5))] ^= rng.integers(0, 256, dtype=np.uint8)
        if rng.random() < 0.1:
            plan = plan[:at]
        try:
            executor = load(plan.tobytes(), bytes(toy.data), tmp_path)
        except EngineError as error:
            refusals.append(str(error))
            continue
        Ragged(executor, 4, max_tokens=8, max_seqs=2).step([("a", [1, 2, 3])])
    assert len(refusals) > 200
    assert all("plan.bin: " in text or "weights.bin: " in text for text in refusals)
