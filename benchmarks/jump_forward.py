"""Measures what jumping over forced tokens saves: steps and seconds of guided answers, with and without.

python benchmarks/jump_forward.py ENGINE
"""

from __future__ import annotations

import sys
import time

from tensorwright import LLM, GuidedDecodingParams, SamplingParams

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string", "maxLength": 12}, "postal_code": {"type": "integer"}},
            "required": ["street", "postal_code"],
            "additionalProperties": False,
        },
        "status": {"enum": ["registered", "unregistered"]},
        "newsletter": {"type": "boolean"},
    },
    "required": ["name", "address", "status", "newsletter"],
    "additionalProperties": False,
}
PROMPT = "Once upon a time"
REPEATS = 5


def main(engine: str) -> None:
    print("| whitespace | requests | jump_forward | steps | tokens | forced | seconds |\n|---|---|---|---|---|---|---|")
    for blanks in (None, ""):
        guide = GuidedDecodingParams(json=SCHEMA, whitespace_pattern=blanks)
        for requests in (1, 8):
            asked = [
                SamplingParams(max_tokens=200, temperature=1.0, seed=seed, logprobs=0, guided_decoding=guide)
                for seed in range(requests)
            ]
            answers = []
            for jump in (False, True):
                with LLM(engine, kv_cache_memory="256MiB", jump_forward=jump) as llm:
                    llm.generate([PROMPT] * requests, asked)
                    before, begun = llm.get_stats(), time.perf_counter()
                    for _ in range(REPEATS):
                        outputs = llm.generate([PROMPT] * requests, asked)
                    seconds, after = (time.perf_counter() - begun) / REPEATS, llm.get_stats()
                tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
                steps, forced = ((after[name] - before[name]) / REPEATS for name in ("steps", "forced_tokens"))
                blank = "any" if blanks is None else "none"
                print(f"| {blank} | {requests} | {jump} | {steps:.1f} | {tokens} | {forced:.1f} | {seconds:.4f} |")
                answers.append([output.outputs[0] for output in outputs])
            assert answers[0] == answers[1], "the answers must have the same bits"


if __name__ == "__main__":
    main(sys.argv[1])
