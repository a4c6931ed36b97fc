"""draft_features(target?, features):  y = features

features: float32 [tokens, H], what the step carries for each token: the features that the model computed of these
positions in an earlier step, or the heads' own.  y: the same, in a buffer.

The instruction parts a plan in two: up to here it is the model, and behind it are the heads that propose tokens to it.
target: the buffer in which the model leaves its features. logits, hidden: the buffers with the heads' logits and their
own features, by number.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorwright.ir.records import Instruction, metadata, rows
from tensorwright.ir.verify import FEATURES


def reference(inputs: list[np.ndarray], attrs: dict[str, Any], act_dtype: str) -> list[np.ndarray]:
    return [inputs[1]]


INSTRUCTION = Instruction(
    "draft_features",
    number=35,
    operands=(rows("target?"), metadata(FEATURES)),
    attrs={"logits": "int", "hidden": "int"},
    reference=reference,
)
