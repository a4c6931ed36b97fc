"""What trees of proposed tokens would bring: how often each candidate of the heads is the model's token, and from that
the tokens of a step with the best chain and with the best tree of as many proposals.

    python benchmarks/token_trees.py ENGINE [--tokens 128] [--json FILE]

ENGINE has heads. Texts are the beginnings of sources of this package (prompt) and what the model answers greedily
(answer). Counted is the rank of the model's own next token among those that the heads name at its place; further ahead
the heads are taken to be right as often, as they are on held-out text. A node of a tree is right with the product of
the shares along its path, so the best tree of N nodes is found by always adding the likeliest node.
"""

from __future__ import annotations

import argparse
import heapq
import json
from pathlib import Path
from typing import Any

import numpy as np
from speculation import prompts

from tensorwright import LLM, SamplingParams
from tensorwright.runtime.engine import native
from tensorwright.runtime.engine.draft_engine import read_draft_tokens
from tensorwright.runtime.engine.engine_dir import EngineDir, open_engine

RANKS = 8
SIZES = (1, 2, 3, 4, 6, 8, 16)
TEXTS = 12


def chain_tokens(shares: list[float], size: int) -> float:
    """Returns the tokens of a step that verifies a chain: the proposed ones that are right, and the model's own."""
    return 1 + sum(shares[0] ** length for length in range(1, size + 1))


def tree_tokens(shares: list[float], size: int) -> float:
    """Returns the tokens of a step that verifies the best tree."""
    likeliest = [(-shares[0], 1.0, 0)]  # (minus the node's probability, its parent's, its rank)
    tokens = 1.0
    for _ in range(size):
        right, parent, rank = heapq.heappop(likeliest)
        tokens -= right
        heapq.heappush(likeliest, (right * shares[0], -right, 0))
        if rank + 1 < len(shares):
            heapq.heappush(likeliest, (-parent * shares[rank + 1], parent, rank + 1))
    return tokens


class Ranks:
    """Ranks of the model's next token among those that the heads name, for texts of up to `longest` tokens."""

    def __init__(self, engine: EngineDir, longest: int):
        self._executor = native.create_executor(engine, 1)
        blocks = -(-longest // engine.block_size)
        self._table = np.arange(blocks, dtype=np.int32)[None]
        groups = len(self._executor.facts()["group_windows"])
        self._groups = groups
        self._executor.allocate([blocks] * groups, longest, longest, 1, 0)
        named = read_draft_tokens(engine)
        self._named = np.arange(engine.vocab_size) if not len(named) else np.asarray(named)

    def _where(self, count: int) -> tuple[Any, ...]:
        positions = np.arange(count, dtype=np.int32)
        groups = [(self._table, positions)] * self._groups
        return positions, np.array([0, count], np.int32), np.array([count], np.int32), positions, groups

    def of(self, ids: np.ndarray) -> np.ndarray:
        """Returns int [len(ids) - 2]: entry i is the rank of the model's choice behind token i + 1; RANKS or more if it
        is no candidate."""
        logits, features = self._executor.step_with_features(ids, *self._where(len(ids)))
        count = len(ids) - 1
        drafted, _ = self._executor.draft_step(ids[1:], *self._where(count), features[:count])
        place = np.full(logits.shape[1], -1)
        place[self._named] = np.arange(len(self._named))
        wanted = place[logits.argmax(1)[1:count]]
        drafted = drafted[: count - 1]
        mine = np.take_along_axis(drafted, np.maximum(wanted, 0)[:, None], 1)
        ranks = (drafted > mine).sum(1)
        return np.where(wanted < 0, RANKS, ranks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine")
    parser.add_argument("--tokens", type=int, default=128, help="tokens of an answer")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    engine = open_engine(args.engine)
    if engine.config.heads is None:
        parser.error(f"{args.engine} was built without heads; build it with --heads")
    params = SamplingParams(max_tokens=args.tokens, temperature=0.0, ignore_eos=True)
    with LLM(engine.path, kv_cache_memory="256MiB") as llm:
        outputs = llm.generate(prompts("code", engine.vocab_size)[:TEXTS], params)
    texts = [
        (len(o.prompt_token_ids), np.array([*o.prompt_token_ids, *o.outputs[0].token_ids], np.int32)) for o in outputs
    ]
    ranks = Ranks(engine, max(len(ids) for _, ids in texts))
    found: dict[str, list[int]] = {"prompt": [], "answer": []}
    for prompt, ids in texts:
        of_text = ranks.of(ids).tolist()
        found["prompt"] += of_text[: prompt - 2]
        found["answer"] += of_text[prompt - 2 :]
    result = {}
    for name, seen in found.items():
        shares = [seen.count(rank) / len(seen) for rank in range(RANKS)]
        result[name] = {"tokens": len(seen), "shares": shares}
        print(f"{name}: {len(seen)} tokens, right at rank 1 to {RANKS}: {' '.join(f'{share:.3f}' for share in shares)}")
        for size in SIZES:
            chain, tree = chain_tokens(shares, size), tree_tokens(shares, size)
            print(f"  {size:2} proposed: chain {chain:.2f} tokens of a step, tree {tree:.2f} ({tree / chain:.3f})")
    if args.json:
        Path(args.json).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
