"""Every number that bounds a request, said once: for SamplingParams, the server's bodies and Triton's tensors alike.

All are far above what clients send (OpenAI takes 4 stop strings, 2048 prompts and messages; vLLM 1024 biases and 128
stop tokens), and low enough that a request at all of its bounds holds nobody up. Each one's docstring is its line in
docs/serving.md.
"""

from __future__ import annotations

# --- What SamplingParams and GuidedDecodingParams hold, wherever they come from.

STOP_STRINGS = 64
"""Texts in `stop`."""
STOP_LENGTH = 256
"""Characters of a text in `stop`."""
STOP_TOKEN_IDS = 256
"""Ids in `stop_token_ids`."""
BAD_WORDS = 1024
"""Entries of `bad_words`."""
BAD_WORD_LENGTH = 256
"""Characters of a text in `bad_words`."""
BAD_WORD_TOKENS = 64
"""Tokens of an entry of `bad_words`."""
LOGIT_BIASES = 4096
"""Entries of `logit_bias`."""
GRAMMAR_LENGTH = 2**17
"""Characters of a schema, a grammar or a regular expression, and of all choices together."""
GRAMMAR_CHOICES = 4096
"""Texts in `guided_choice`."""

# --- What only a body of the server has.

COMPLETIONS = 128
"""Completions of a prompt, `n`."""
LOGPROBS = 20
"""Likeliest tokens in each place, `logprobs` and `top_logprobs`."""
PROMPTS = 2048
"""Texts or lists of ids in `prompt`."""
MESSAGES = 2048
"""Messages of a conversation."""
CONTENT_PARTS = 1024
"""Parts of a message's `content`."""
TOKENS = 2**18
"""Ids in `tokens` of `/detokenize`."""
NAME_LENGTH = 1024
"""Characters of a name: `model`, `user`, a message's or a schema's `name`."""

# --- The JSON of a body, whatever it says.

BODY_KEYS = 100
"""Keys of a body, and of each message in it."""
BODY_DEPTH = 100
"""Lists and objects inside each other."""
BODY_OBJECTS = 2**14
"""Objects and lists, all together."""
BODY_VALUES = 2**19
"""Values, those in lists and objects counted one by one."""
