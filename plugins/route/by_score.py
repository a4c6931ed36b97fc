"""route_by_score(logits, bias?, expert_scales?){k, normalise, score, ...}:  a route with all that it may have

Its definition, and the meaning of the attributes, stand in plugins/route/op.py.
"""

from __future__ import annotations

from tensorwright.ir.records import Instruction
from tensorwright.plugins.route.op import OP, RESULTS, SCORES, reference

FLAG = (False, True)
INSTRUCTION = Instruction(
    "route_by_score",
    number=28,
    operands=OP.operands,
    results=RESULTS,
    attrs={**OP.attrs, **OP.optional_attrs},
    words={"normalise": FLAG, "score": SCORES, "by_scores": FLAG, "keeps_others": FLAG},
    reference=reference,
    sums=True,
)
