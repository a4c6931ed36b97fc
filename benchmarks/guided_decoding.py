"""What guided decoding costs: tokens per second with and without a JSON schema.

    python benchmarks/guided_decoding.py ENGINE [--batches 1 8] [--tokens 128] [--rounds 5] [--threads N]

Both make the same number of tokens from the same prompts: the schema is an array too long to end, and the others ignore
the end-of-sequence token. Rounds of the two take turns; the overhead is that of the median round over the median round.
The target is below 5 %. Where others use the machine, look at the time of the processor, with --threads 1: more threads
wait for each other at work. It counts what the masks' own threads do beside the engine's, too, which no clock shows.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

SCHEMA = {
    "type": "array",
    "minItems": 1000,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 40},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "mail": {"type": "string", "pattern": "^[a-z]{1,10}@[a-z]{1,10}\\.org$"},
            "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 4},
            "score": {"type": "number"},
        },
        "required": ["name", "age", "mail", "tags", "score"],
        "additionalProperties": False,
    },
}


def seconds(llm, batch: int, params) -> tuple[float, float]:
    """Returns the seconds of a batch of different prompts, by the clock and of the processor. Raises RuntimeError if an
    output has another number of tokens."""
    prompts = [f"A list of people, number {index}, as JSON: " for index in range(batch)]
    start, used = time.perf_counter(), time.process_time()
    outputs = llm.generate(prompts, params)
    elapsed = time.perf_counter() - start, time.process_time() - used
    made = {len(output.outputs[0].token_ids) for output in outputs}
    if made != {params.max_tokens}:
        raise RuntimeError(f"every output must have {params.max_tokens} tokens, got {made}")
    return elapsed


def compare(llm, batch: int, tokens: int, rounds: int) -> None:
    from tensorwright import GuidedDecodingParams, SamplingParams

    plain = SamplingParams(max_tokens=tokens, temperature=1, seed=1, ignore_eos=True)
    guided = SamplingParams(max_tokens=tokens, temperature=1, seed=1, guided_decoding=GuidedDecodingParams(json=SCHEMA))
    times: dict[str, list[tuple[float, float]]] = {"plain": [], "guided": []}
    for kind, params in (("plain", plain), ("guided", guided)) * (rounds + 1):
        times[kind].append(seconds(llm, batch, params))
    overheads = []
    for clock in (0, 1):
        free, shaped = ([each[clock] for each in times[kind][1:]] for kind in times)  # the first round warms up
        more = statistics.median(shaped) - statistics.median(free)
        overheads.append(
            f"{more / statistics.median(free):+.1%}, {more / batch / tokens * 1e6:+.0f} us a token (best rounds "
            f"{min(shaped) / min(free) - 1:+.1%})"
        )
    rates = [batch * tokens / statistics.median(wall for wall, _ in times[kind][1:]) for kind in times]
    print(
        f"batch {batch:3}: {rates[0]:8.1f} tokens/s without, {rates[1]:8.1f} with a schema, overhead {overheads[0]}; "
        f"of the processor {overheads[1]}"
    )


def mask_times(llm) -> None:
    """Times the library alone, over a text that a model might generate."""
    from tensorwright import GuidedDecodingParams
    from tensorwright.errors import InvalidRequestError
    from tensorwright.runtime.guided.reader import guided_vocabulary

    text = '[{"name": "Ada", "age": 36, "mail": "ada@example.org", "tags": ["red", "blue"], "score": 4.25}, '
    start = time.perf_counter()
    grammar = guided_vocabulary(llm.engine).compile(GuidedDecodingParams(json=SCHEMA))
    compiled = time.perf_counter() - start
    place = grammar.start(False)
    spans = []
    for token in llm.engine.tokenizer.encode(text * 4, False):
        begin = time.perf_counter()
        try:
            place.advance([token])
        except InvalidRequestError:  # the schema does not allow the second "["
            break
        spans.append((time.perf_counter() - begin) * 1e6)
    spans.sort()
    print(
        f"tokenizer and grammar {compiled * 1e3:.0f} ms; mask and next token: "
        f"median {statistics.median(spans):.0f} us, longest {spans[-1]:.0f} us of {len(spans)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--patience", type=float, default=300, help="seconds to wait for an idle machine")
    parser.add_argument("--threads", type=int, help="of the engine")
    args = parser.parse_args()

    from machine import describe, wait_until_idle

    from tensorwright import LLM

    busy = wait_until_idle(patience=args.patience)
    print(describe(), f"machine {busy:.1%} busy before")
    batch_size = max(args.batches)
    with LLM(args.engine, max_batch_size=batch_size, enable_prefix_caching=False, threads=args.threads) as llm:
        mask_times(llm)
        for batch in args.batches:
            compare(llm, batch, args.tokens, args.rounds)


if __name__ == "__main__":
    main()
