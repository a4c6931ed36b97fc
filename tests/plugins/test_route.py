"""route: the experts that it chooses and their weights, against the numpy definition."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support.isa_levels import PRESENT
from support.made_experts import MadeExperts
from support.made_matmul import UNIT, same_bits
from tensorwright.errors import GraphError
from tensorwright.ir.graph import Value
from tensorwright.plugins.route import op

pytestmark = pytest.mark.computes


def shown(made: MadeExperts) -> MadeExperts:
    """Makes expert e give its weight in column e, exactly: relu(1) * 1 * 1, and zeros elsewhere."""
    made.activation, made.inner = "relu", 1
    made.x[:, 0] = 1
    made.gate_up = np.zeros((made.count, 2, made.hidden), np.float32)
    made.gate_up[:, :, 0] = 1
    made.down = np.eye(made.count, made.hidden, dtype=np.float32)[:, :, None]
    return made


CORRECTED, SCALED = "corrected", "scaled"
RULES: dict[str, tuple[dict[str, object], tuple[str, ...]]] = {
    "sigmoid": ({"score": "sigmoid"}, ()),
    "corrected sigmoid": ({"score": "sigmoid", "by_scores": True}, (CORRECTED,)),
    "corrected softmax": ({"by_scores": True, "least": 1e-12}, (CORRECTED,)),
    "corrected logits": ({"score": "sigmoid"}, (CORRECTED,)),
    "scaled": ({"scale": 2.5, "epsilon": 0.125}, ()),
    "scaled by expert": ({}, (SCALED,)),
    "scaled twice and corrected": ({"scale": 2.5, "score": "sigmoid", "by_scores": True}, (CORRECTED, SCALED)),
    "groups": ({"score": "sigmoid", "by_scores": True, "groups": 4, "group_limit": 2, "group_best": 2}, (CORRECTED,)),
    "groups by their largest": ({"by_scores": True, "groups": 3, "group_limit": 2}, ()),
    "groups that keep others": (
        {"score": "sigmoid", "by_scores": True, "groups": 6, "group_limit": 1, "keeps_others": True},
        (CORRECTED,),
    ),
    "sparsemixer": ({"score": "sparsemixer", "jitter": 0.3}, ()),
    "sparsemixer scaled by expert": ({"score": "sparsemixer", "jitter": 0.3}, (SCALED,)),
}
"""Attributes of a route that chooses 3 of 12 experts, and the vectors that it has."""


def bound(logits: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The roundings of a weight: of the differences of logits, which exp passes on as they are, in the term and in the
    sum; of exp, below 2 each; of the sum, of the division, and of the products with both scales."""
    spread = logits.max(-1, keepdims=True) - logits.min(-1, keepdims=True)
    return UNIT * (2 * spread + logits.shape[-1] + 7) * np.abs(weights) + 2.0**-126


@pytest.mark.parametrize("level", PRESENT)
@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize(("count", "k"), [(1, 1), (2, 1), (7, 3), (16, 16), (33, 8)])
def test_choice_and_weights(
    count: int, k: int, normalise: bool, level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENSORWRIGHT_ISA", level)
    made = shown(MadeExperts(count=count, k=k, normalise=normalise))
    index, weights = made.routed()
    tokens = list(range(made.hidden))
    ordered = made.run(tmp_path, tokens, observed="weights")[:, :k]
    assert (np.abs(ordered - weights) <= bound(made.logits, weights)).all()
    by_expert = np.zeros((made.hidden, made.hidden), np.float32)
    np.put_along_axis(by_expert, index, ordered, -1)
    assert same_bits(made.run(tmp_path, tokens), by_expert)


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_choice_and_weights_by_score(rule: str, normalise: bool, tmp_path: Path) -> None:
    routing, vectors = RULES[rule]
    own = dict.fromkeys(vectors, True)
    made = shown(MadeExperts(count=12, k=3, normalise=normalise, routing=routing, **own))
    index, weights = made.routed()
    tokens = list(range(made.hidden))
    ordered = made.run(tmp_path, tokens, observed="weights")[:, :3]
    assert (np.abs(ordered - weights) <= bound(made.logits, weights)).all()
    by_expert = np.zeros((made.hidden, made.hidden), np.float32)
    np.put_along_axis(by_expert, index, ordered, -1)
    assert same_bits(made.run(tmp_path, tokens), by_expert)


def test_scales_of_experts_give_the_same_bits_on_every_instruction_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, results = MadeExperts(count=12, k=3, scaled=True), []
    for level in PRESENT:
        monkeypatch.setenv("TENSORWRIGHT_ISA", level)
        results.append(made.run(tmp_path, list(range(made.hidden))))
    assert all(same_bits(result, results[0]) for result in results[1:])
    made.scaled = False
    assert not same_bits(made.run(tmp_path, list(range(made.hidden))), results[0])


@pytest.mark.parametrize("routing", [{"score": "sigmoid"}, {"groups": 2, "group_limit": 1, "by_scores": True}])
def test_of_equal_scores_the_lowest_comes_first(routing: dict[str, object], tmp_path: Path) -> None:
    made = shown(MadeExperts(count=6, k=3, routing=routing))
    made.logits = np.random.default_rng(1).integers(0, 3, made.logits.shape).astype(np.float32)
    index, _ = made.routed()
    results = made.run(tmp_path, list(range(made.hidden)))[:, :6]
    assert (np.sort(np.argsort(-results, kind="stable")[:, :3]) == np.sort(index)).all()


def test_of_equal_logits_the_lowest_comes_first(tmp_path: Path) -> None:
    made = shown(MadeExperts(count=6, k=3))
    made.logits = np.random.default_rng(1).integers(0, 3, made.logits.shape).astype(np.float32)
    index, _ = made.routed()
    chosen = np.sort(np.argsort(-made.run(tmp_path, list(range(made.hidden)))[:, :6], kind="stable")[:, :3])
    assert (chosen == np.sort(index)).all()
    assert index[0].tolist() == sorted(range(6), key=lambda e: (-made.logits[0, e], e))[:3]


def test_a_logit_that_is_no_number_is_chosen_and_shows(tmp_path: Path) -> None:
    made = MadeExperts()
    made.logits[3, 5] = np.nan
    result = made.run(tmp_path, list(range(made.hidden)))
    assert np.isnan(result[3]).all()
    assert np.isfinite(np.delete(result, 3, axis=0)).all()
    index, weights = made.routed()
    assert index[3, 0] == 5
    assert np.isnan(weights[3]).all()


def test_infer() -> None:
    logits = Value("logits", "float32", ("tokens", 8))
    assert op.infer([logits], {"k": 2}) == [("int32", ("tokens", 2)), ("float32", ("tokens", 2))]
    with pytest.raises(GraphError, match="k must be 1 to the number of experts, 8, got 9"):
        op.infer([logits], {"k": 9})
    for attrs, message in (
        ({"score": "tanh"}, "score must be one of softmax, sigmoid, sparsemixer"),
        ({"groups": 3}, "groups must divide the 8 experts, got 3"),
        ({"groups": 4, "group_limit": 5}, "group_limit must be 1 to 4"),
        ({"groups": 8, "group_limit": 1}, "k must be at most 1, the experts of 1 groups, got 2"),
    ):
        with pytest.raises(GraphError, match=message):
            op.infer([logits], {"k": 2, **attrs})
    with pytest.raises(GraphError, match=r"bias must be \[8\], got \[7\]"):
        op.infer([logits, Value("bias", "float32", (7,))], {"k": 2})
    with pytest.raises(GraphError, match=r"expert_scales must be \[8\], got \[1, 8\]"):
        op.infer([logits, None, Value("scales", "float32", (1, 8))], {"k": 2})
    many = Value("logits", "float32", ("tokens", op.MAX_COMPARISONS // 4))
    assert op.infer([many], {"k": 4})[0] == ("int32", ("tokens", 4))
    with pytest.raises(GraphError, match="experts times k must be at most 1048576, got 262144 times 5"):
        op.infer([many], {"k": 5})
