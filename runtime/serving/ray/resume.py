"""Makes the request with which another replica goes on where a lost one left off.

The continuation's prompt is the prompt and the tokens so far. A token is drawn by seed and position, and on target cpu
a position's logits do not depend on how the positions before were computed, so the tokens that follow are, bit for bit,
those that the lost replica would have given.
"""

from __future__ import annotations

from dataclasses import replace

from tensorwright.runtime.requests.outputs import CompletionOutput
from tensorwright.runtime.requests.sampling_params import SamplingParams


def why_not(params: SamplingParams) -> str | None:
    """Returns why a request with these parameters cannot go on elsewhere, or None if it can.

    params: those of a request that has tokens already. A parameter is in the way if what it does depends on which
    tokens were generated and which are the prompt's.
    """
    if params.sequences > 1:
        return "a request of several completions starts from one prompt"
    if params.guided_decoding is not None:
        return "guided_decoding would begin its grammar anew"
    if params.presence_penalty or params.frequency_penalty:
        return "presence_penalty and frequency_penalty count the tokens of the output alone"
    if params.prompt_logprobs is not None:
        return "prompt_logprobs would be computed anew"
    return None


def continuation(params: SamplingParams, max_tokens: int, done: CompletionOutput) -> SamplingParams:
    """Returns the parameters of the request that goes on.

    params: those of the request, with a seed. max_tokens: the most tokens of the whole request, more than there are
    in `done`. Stop strings are left to the reader of the whole text, for they may have begun in the text so far.
    """
    count = len(done.token_ids)
    return replace(
        params,
        max_tokens=max_tokens - count,
        min_tokens=max(0, params.min_tokens - count),
        stop=(),
        include_stop_str_in_output=False,
        detokenize=False,
    )
