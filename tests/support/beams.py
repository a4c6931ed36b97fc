"""transformers' beam search, for comparison."""

from __future__ import annotations

from typing import Any

from tensorwright import SamplingParams


def transformers_beams(
    model: Any, prompt: list[int], params: SamplingParams, ends: list[int], use_cache: bool = True
) -> list[tuple[list[int], float]]:
    """Returns (tokens without the prompt, score) of the n best, the best first. ends: the tokens that end a beam."""
    import torch

    ids = torch.tensor([prompt])
    found = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, num_beams=params.beam_width,
        num_return_sequences=params.n, max_new_tokens=params.max_tokens, min_new_tokens=params.min_tokens or None,
        length_penalty=params.length_penalty, early_stopping=params.early_stopping,
        repetition_penalty=params.repetition_penalty, eos_token_id=ends, pad_token_id=ends[0], use_cache=use_cache,
        return_dict_in_generate=True, output_scores=True,
    )  # fmt: skip
    answers = []
    for row, score in zip(found.sequences.tolist(), found.sequences_scores.tolist(), strict=True):
        tokens = row[len(prompt) :]
        end = next((at for at, token in enumerate(tokens) if token in ends), len(tokens) - 1)
        answers.append((tokens[: end + 1], score))
    return answers
