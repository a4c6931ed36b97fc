"""Defines every bound of a request, for SamplingParams, the server's bodies and Triton's tensors.

All bounds are far above what clients send (OpenAI takes 4 stop strings, 2048 prompts and as many messages; vLLM takes
1024 biases and 128 stop tokens), and so low that a request at all of its bounds delays nobody. docs/serving.md has a
line for each bound, which is the docstring here.
"""

from __future__ import annotations

# --- Bounds of SamplingParams and GuidedDecodingParams, whoever makes them.

STOP_STRINGS = 64
"""Texts in `stop`."""
STOP_LENGTH = 256
"""Characters of a text in `stop`."""
STOP_TOKEN_IDS = 256
"""Ids in `stop_token_ids`."""
BAD_WORDS = 1024
"""Entries of `bad_words`, and words in Triton's `embedding_bias_words`."""
BAD_WORD_LENGTH = 256
"""Characters of a text in `bad_words`."""
BAD_WORD_TOKENS = 64
"""Tokens of an entry of `bad_words`, and of a word in Triton's `embedding_bias_words`."""
LOGITS_PROCESSORS = 16
"""Entries of `logits_processors` in Python."""
LOGIT_BIASES = 2**19
"""Entries of `logit_bias` in Python, and numbers in Triton's `embedding_bias`: more than any vocabulary has."""
DRY_BREAKERS = 16
"""Texts in `dry_sequence_breakers`."""
DRY_BREAKER_LENGTH = 40
"""Characters of a text in `dry_sequence_breakers`."""
GRAMMAR_LENGTH = 2**16
"""Characters of a grammar, a regular expression, a schema without its blanks, and all choices together."""
SCHEMA_LENGTH = 2**18
"""Characters of a schema that comes as a text, blanks included."""
GRAMMAR_CHOICES = 4096
"""Texts in `guided_choice`."""
SALT_LENGTH = 256
"""Characters of `cache_salt`."""

# --- Ranges of numbers. The sampler computes in single precision, which can represent all of them.

MAX_SEED = 2**64 - 1
"""The largest `seed`."""
TEMPERATURES = (1e-6, 1e6)
"""`temperature`, besides 0."""
PENALTIES = (-100.0, 100.0)
"""`presence_penalty` and `frequency_penalty`."""
REPETITION_PENALTIES = (0.01, 100.0)
"""`repetition_penalty`."""
DRY_MULTIPLIERS = (0.0, 100.0)
"""`dry_multiplier`."""
DRY_BASES = (1.0, 100.0)
"""`dry_base`."""
MAX_BIAS = 1e6
"""A number in `logit_bias`, above or below 0; -inf forbids the token."""
MAX_TIMEOUT = 1e7
"""Seconds of `timeout` and `deadline`."""
WEIGHTS = (1e-3, 1e3)
"""`tenant_weight`, and `weight=` of a key. runtime/core/scheduler/request.h has the same numbers."""

# --- Bounds of fields that only a body of the server has.

COMPLETIONS = 128
"""Completions of a prompt, `n`."""
LOGPROBS = 20
"""Likeliest tokens in each place, `logprobs` and `top_logprobs`."""
PROMPTS = 2048
"""Texts or lists of ids in `prompt`; and never more than `--max-batch-size` and `--max-queue-size` together."""
TOKENS = 2**18
"""Ids in a list of `prompt`, and in `tokens` of `/detokenize`."""
EMBEDDING_NUMBERS = 2**22
"""Numbers in all embeddings that a request to `/v1/embeddings` asks for."""
BODY_LOGIT_BIASES = 4096
"""Entries of `logit_bias` in a body."""
MESSAGES = 2048
"""Messages of a conversation."""
CONTENT_PARTS = 1024
"""Parts of a message's `content`."""
TOOLS = 256
"""Entries of `tools`, and calls in `tool_calls` of a message."""
CALL_ARGUMENTS = 2**20
"""Characters of the `arguments` of a call in `tool_calls`."""
TEMPLATE_VALUES = 2**14
"""Values in `chat_template_kwargs`, those in lists and objects counted one by one."""
NAME_LENGTH = 1024
"""Characters of `model`, of `user`, of ids, and of a message's or a schema's `name`."""
METADATA_ENTRIES = 16
"""Entries of `metadata` and of `include`."""
METADATA_KEY = 64
"""Characters of a key in `metadata`."""
METADATA_VALUE = 512
"""Characters of a value in `metadata`."""

# --- Bounds of the JSON of a body, independent of its fields.

BODY_KEYS = 100
"""Keys of a body, and of each message in it; parameters of a Triton request."""
BODY_DEPTH = 100
"""Lists and objects inside each other."""
BODY_PARTS = 2**16
"""Lists, objects and texts in a body, all together; the key of an object is a text too."""
BODY_VALUES = 2**18
"""Values of a body, counted by the commas between them."""
