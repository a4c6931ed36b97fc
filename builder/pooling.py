"""Chooses the task of an engine, and writes what its config.json says of pooling.

The options name the task, or the checkpoint does: files of sentence-transformers with a module that pools, or an
architecture without lm_head such as Qwen3Model, mean embeddings. A checkpoint of the kind of Qwen3-Reranker looks like
one that generates, so it must be named.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from tensorwright.builder.options import BuildOptions
from tensorwright.engine_format.file_names import TOKENIZER
from tensorwright.engine_format.pooling import EMBED, GENERATE, LAST, RERANK, PoolingRecord
from tensorwright.errors import InvalidOptionError, UnsupportedModelError
from tensorwright.models.checkpoint import Checkpoint
from tensorwright.models.sentence_transformers import SentenceFiles, read_sentence_files, says_embeddings

RERANK_TEMPLATE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n<Instruct>: {instruction}\n'
    "<Query>: {query}\n<Document>: {document}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
"""The text that the models of Qwen3-Reranker were trained with (their model card)."""
RERANK_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
"""The instruction of the same card."""


def choose_task(options: BuildOptions, checkpoint: Checkpoint) -> tuple[BuildOptions, PoolingRecord | None]:
    """Returns the options with the task that is built, and the record of an engine that draws no tokens.

    Raises InvalidOptionError for options that the task does not have, UnsupportedModelError for an encoder and for
    modules that are not computed, and CheckpointError for files that cannot be read.
    """
    folder = checkpoint.folder if checkpoint.gguf is None else None
    task = options.task
    if task == "auto":
        embeds = is_bare(checkpoint.config) or (folder is not None and says_embeddings(folder))
        task = EMBED if embeds else GENERATE
    if task != GENERATE and options.target != "cpu":
        raise InvalidOptionError(
            f"{checkpoint.path}: an engine of task {task} is built for target cpu alone, not for {options.target}; say "
            "--target cpu, or --task generate for a checkpoint that can generate"
        )
    options = replace(options, task=task)
    if task == GENERATE:
        return options, None
    if task == RERANK:
        return options, PoolingRecord(
            task=RERANK,
            pooling=LAST,
            tokens=_answer_tokens(checkpoint),
            template=RERANK_TEMPLATE,
            instruction=RERANK_INSTRUCTION,
        )
    refuse_encoder(checkpoint)
    asked = None if options.pooling == "auto" else options.pooling
    files = None if folder is None else read_sentence_files(folder, asked)
    files = files or SentenceFiles(asked, True)
    return options, PoolingRecord(
        task=EMBED,
        pooling=files.pooling or LAST,
        normalize=files.normalize,
        prompts=files.prompts,
        default_prompt=files.default_prompt,
    )


def is_bare(config: dict[str, Any]) -> bool:
    """Returns whether a config.json names a model without an lm_head, such as Qwen3Model. GPT2LMHeadModel and
    GPT2DoubleHeadsModel have one."""
    named = config.get("architectures")
    return isinstance(named, list) and bool(named) and all(_is_bare_name(str(name)) for name in named)


def _is_bare_name(name: str) -> bool:
    return re.search(r"(?<!Head)(?<!Heads)Model$", name) is not None


def refuse_encoder(checkpoint: Checkpoint) -> None:
    """Raises UnsupportedModelError for a config of a model whose tokens see those behind them."""
    config = checkpoint.config
    for key, wrong in (("is_causal", False), ("is_decoder", False), ("use_bidirectional_attention", True)):
        if config.get(key) is wrong:
            raise UnsupportedModelError(
                f"{checkpoint.config_file}: {key} is {str(wrong).lower()}: the model is an encoder, whose tokens see "
                "those behind them; embeddings are computed with decoders alone"
            )


def _answer_tokens(checkpoint: Checkpoint) -> list[int]:
    """Returns the tokens of "no" and "yes"."""
    from tokenizers import Tokenizer

    file = checkpoint.tokenizer_files.get(TOKENIZER)
    if file is None:
        raise UnsupportedModelError(f"{checkpoint.path}: task rerank needs the checkpoint's {TOKENIZER}")
    tokenizer = Tokenizer.from_file(str(file))
    ids = [token for word in ("no", "yes") if (token := tokenizer.token_to_id(word)) is not None]
    if len(ids) < 2:
        raise UnsupportedModelError(
            f'{file}: has no single tokens "yes" and "no", which task rerank compares; give a checkpoint of the kind '
            "of Qwen3-Reranker"
        )
    return ids
