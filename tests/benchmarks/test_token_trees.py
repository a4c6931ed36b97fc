"""benchmarks/token_trees.py: the tokens of chains and of the best trees."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "benchmarks")]

from token_trees import chain_tokens, tree_tokens  # noqa: E402


@pytest.mark.parametrize("shares", [[0.5, 0.3, 0.1], [0.8, 0.05], [0.3, 0.29, 0.2]])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_the_best_tree_is_the_best_of_all(shares: list[float], size: int) -> None:
    """Of all sets of nodes that hold their parents; a node is its path of ranks."""
    paths = [path for depth in range(1, size + 1) for path in itertools.product(range(len(shares)), repeat=depth)]

    def right(path: tuple[int, ...]) -> float:
        product = 1.0
        for rank in path:
            product *= shares[rank]
        return product

    # A child is never likelier than its parent, so the likeliest nodes hold their parents.
    best = 1 + sum(sorted(map(right, paths), reverse=True)[:size])
    assert tree_tokens(shares, size) == pytest.approx(best)


def test_where_the_first_candidate_leads_by_far_the_best_tree_is_a_chain() -> None:
    assert tree_tokens([0.8, 0.05], 4) == pytest.approx(chain_tokens([0.8, 0.05], 4))
    assert tree_tokens([0.5, 0.4], 2) > chain_tokens([0.5, 0.4], 2)
