"""Opens an engine for the runtime: it checks the folder, and reads the tokenizer and the chat templates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash
from tokenizers import AddedToken

from tensorwright.engine_format.checksums import REMEDY
from tensorwright.engine_format.engine_config import ModelFacts
from tensorwright.engine_format.engine_folder import EngineFolder
from tensorwright.engine_format.file_names import (
    CONFIG,
    CPU_PLAN,
    RANK_PLAN,
    SPECIAL_TOKENS_MAP,
    TOKENIZER,
    TOKENIZER_CONFIG,
)
from tensorwright.engine_format.kv_cache import DECISION_INTERVAL, most_held
from tensorwright.engine_format.template_files import read_templates
from tensorwright.engine_format.weight_formats import QuantizeSpec
from tensorwright.errors import EngineError
from tensorwright.runtime.base.once import once
from tensorwright.runtime.text.special_tokens import special_tokens
from tensorwright.runtime.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class EngineDir(EngineFolder):
    """A checked engine. Its properties come from config.json or from the files beside it."""

    @property
    def dtype(self) -> str:
        return self.config.dtype

    @property
    def quantize_specs(self) -> dict[str, QuantizeSpec]:
        """The formats of quantized weights by name: the name that the build got, and the full spelling. {} without
        any."""
        return self.config.quantize_specs

    @property
    def model(self) -> ModelFacts:
        return self.config.model

    @property
    def vocab_size(self) -> int:
        return self.config.model.vocab_size

    @property
    def max_seq_len(self) -> int:
        return self.config.limits.max_seq_len

    @property
    def block_size(self) -> int:
        return self.config.limits.block_size

    @property
    def kv_block_bytes(self) -> int:
        """Bytes of one block of the KV cache over all layers."""
        return self.config.limits.kv_block_bytes

    @property
    def state_bytes(self) -> int:
        """Bytes of one sequence's states: those of all recurrent layers, and the scores of its blocks in an engine with
        a kv_budget. 0 without either."""
        return self.config.limits.state_bytes or 0

    @property
    def what_has_states(self) -> str:
        """Says why a sequence has states, for messages: the engine's path and words for "it has states"."""
        if self.kv_budget is not None:
            return f"{self.path} was built with a kv_budget, whose scores of blocks"
        return f"{self.path} has recurrent layers, whose states"

    @property
    def kv_budget(self) -> int | None:
        """The positions that a sequence keeps in the KV cache at each decision; None means all."""
        budget: int | None = self.config.build_options.get("kv_budget")
        return budget

    @property
    def chunk_stop(self) -> int:
        """The position whose multiples no step of a sequence crosses, because blocks are forgotten there; 0 without a
        kv_budget."""
        return 0 if self.kv_budget is None else max(DECISION_INTERVAL, self.block_size)

    @property
    def most_held(self) -> int:
        """The most positions whose blocks a sequence holds."""
        return most_held(self.max_seq_len, self.kv_budget)

    @property
    def draft_vocab(self) -> int:
        """The tokens that the engine's heads may propose, as many times as they say tokens at once; 0 without heads."""
        heads = self.config.heads
        return 0 if heads is None else heads.vocab_size * (heads.at_once or 1)

    @property
    def plan(self) -> Path:
        """The plan of an engine of target cpu; of a parallel one, that of the rank which was opened, or of rank 0."""
        return self.file(CPU_PLAN if self.config.ranks == 1 else RANK_PLAN.format(self.rank or 0))

    @property
    def weights(self) -> Path:
        """The file that holds the weights, whatever the target; of a parallel engine, those of the same rank."""
        return self.file(self.config.run_files(None if self.config.ranks == 1 else self.rank or 0)[0])

    def require_same_build(self, name: str, facts: Mapping[str, Any]) -> None:
        """Raises EngineError if facts of another file of the engine differ from config.json.

        name: the other file's. facts: its values, by the names of this class's properties.
        """
        for fact, value in facts.items():
            if getattr(self, fact) != value:
                raise EngineError(
                    f"{self.path / CONFIG}: {fact} is {getattr(self, fact)}, but {value} in {name}: files of two "
                    f"builds are mixed; {REMEDY}"
                )

    @once
    def digest(self) -> str:
        """A text that is equal for engines of equal files, on all machines."""
        sums = sorted((name, file.digest) for name, file in self.files.items())
        return xxhash.xxh3_64_hexdigest("\n".join(f"{digest} {name}" for name, digest in sums).encode())

    @once
    def eos_token_ids(self) -> list[int]:
        """The tokens that end a text, from `read_eos_token_ids`."""
        return self.read_eos_token_ids()

    @once
    def tokenizer_settings(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """tokenizer_config.json and special_tokens_map.json, each {} if the engine has none."""
        return self.read_json(TOKENIZER_CONFIG), self.read_json(SPECIAL_TOKENS_MAP)

    @once
    def chat_templates(self) -> dict[str, str]:
        """The Jinja texts of the chat templates by name, "default" first; {} for a model without a chat template."""
        return read_templates(self.path, self.texts, self.tokenizer_settings[0])

    @once
    def special_tokens(self) -> list[AddedToken]:
        """The tokens that the two files of tokenizer_settings call special. tokenizer.json may have more."""
        return special_tokens(*self.tokenizer_settings)

    @once
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer; None for an engine that was built from a checkpoint without one."""
        if TOKENIZER not in self.files:
            return None
        tokenizer = Tokenizer.from_bytes(self.texts[TOKENIZER], self.path / TOKENIZER, self.special_tokens)
        del self.texts[TOKENIZER]  # this frees tens of MB for a large vocabulary
        return tokenizer

    def load_text_side(self) -> None:
        """Reads the tokenizer and the chat templates now rather than on their first use."""
        _ = self.tokenizer, self.chat_templates


def open_engine(path: str | Path, *, read_tokenizer: bool = False, rank: int | None = None) -> EngineDir:
    """Opens an engine. Raises EngineError, which names the file and the remedy.

    read_tokenizer: True reads the tokenizer while the weights are being checked; False reads it on its first use. rank:
    of a parallel engine, the one that this process runs.
    """
    return EngineDir.open(path, EngineDir.load_text_side if read_tokenizer else None, rank)
