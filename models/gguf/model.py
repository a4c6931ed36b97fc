"""Reads a GGUF file, or its parts, as a checkpoint: the config, the tensors by the model's names, the text side."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tensorwright.errors import CheckpointError, UnsupportedModelError
from tensorwright.gguf_names import PART, gguf_parts
from tensorwright.models.gguf.blocks import BlockType
from tensorwright.models.gguf.families import FAMILIES, Family
from tensorwright.models.gguf.gguf_file import GgufFile
from tensorwright.models.gguf.metadata import Metadata
from tensorwright.models.gguf.rope import VECTORS, rope_parameters
from tensorwright.models.gguf.tensors import Rows, Transposed, decoded, expert
from tensorwright.models.gguf.vocabulary import tokenizer_config
from tensorwright.models.quantized.interface import Decoded, Quantization
from tensorwright.models.stored_tensors import StoredTensors

_LAYER = re.compile(r"blk\.(0|[1-9]\d{0,5})\.([a-z0-9_.]+)\.(weight|bias)")
_SHOWN = 10


@dataclass(frozen=True)
class GgufModel:
    """What a GGUF file says of a checkpoint. config, generation_config, tokenizer_config: as their files would have
    it."""

    config: dict[str, Any]
    generation_config: dict[str, Any]
    tokenizer_config: dict[str, Any]
    stored: StoredTensors
    quantization: Quantization


def read_gguf(path: Path) -> GgufModel:
    """Reads the headers of a GGUF file and, if it is the first of several, of the others.

    Raises CheckpointError for files that are damaged or not whole, and UnsupportedModelError for architectures, types
    of tensors, or metadata that are not read.
    """
    files = _open_parts(path)
    first = files[0]
    data = Metadata(first)
    family = FAMILIES.get(data.architecture)
    if family is None:
        name = data.architecture.encode("ascii", "backslashreplace").decode()
        raise UnsupportedModelError(
            f"{path}: GGUF files of the architecture {name:.100} are not read; give its checkpoint in safetensors, "
            f"or a file of {', '.join(FAMILIES)}"
        )
    stored = StoredTensors(path, files)
    blocks = {name: block for file in files for name, block in file.blocks.items()}
    config = _config(data, family, stored, blocks, path)
    matrices = dict(_matrices(family, config, stored, blocks))
    ends = sorted({token for name in ("eos", "eot") if (token := data.token(name)) is not None})
    generation = {"bos_token_id": config["bos_token_id"], "eos_token_id": ends} if ends else {}
    text = tokenizer_config(first.metadata)
    for file in files:
        file.metadata.clear()  # It holds the vocabulary, which is read again when the tokenizer is made.
    return GgufModel(config, generation, text, stored, Quantization(_summary(stored, blocks), matrices, VECTORS))


def _open_parts(path: Path) -> list[GgufFile]:
    """Returns the files of a model, in order. The first has the metadata."""
    first = GgufFile(path)
    count = first.metadata.get("split.count", 0)
    if not isinstance(count, int) or count <= 1:
        return [first]
    match = PART.fullmatch(path.name)
    if match is None or int(match[3]) != count:
        raise CheckpointError(
            f"{path}: is one of {count} parts, and must be called NAME-00001-of-{count:05}.gguf, the others likewise"
        )
    if int(match[2]) != 1:
        raise CheckpointError(f"{path}: is a later part of its model; give {match[1]}-00001-of-{match[3]}.gguf")
    parts = gguf_parts(path)
    absent = [other.name for other in parts if not other.is_file()]
    if absent or len(parts) != count:
        raise CheckpointError(
            f"{path}: is the first of {count} parts, of which are missing: {', '.join(absent[:_SHOWN])}; get them too"
        )
    files = [first, *map(GgufFile, parts[1:])]
    wanted, found = first.metadata.get("split.tensors.count"), sum(len(file.tensors) for file in files)
    if wanted is not None and wanted != found:
        raise CheckpointError(f"{path}: the parts must hold {wanted!r:.100} tensors, and hold {found}")
    return files


def _config(
    data: Metadata, family: Family, stored: StoredTensors, blocks: dict[str, BlockType], path: Path
) -> dict[str, Any]:
    """Returns config.json. Raises for metadata that are missing, or that no config here has."""
    needed = [*family.whole, *family.real]
    if missing := data.missing(needed):
        raise CheckpointError(f"{path}: lacks the metadata {', '.join(missing)}; give a whole file")
    config: dict[str, Any] = {"model_type": family.model_type}
    config |= {ours: data.whole(theirs) for theirs, ours in family.whole.items()}
    config |= {ours: data.real(theirs) for theirs, ours in family.real.items()}
    heads, layers = config["num_attention_heads"], config["num_hidden_layers"]
    if not heads or not layers:
        raise CheckpointError(f"{path}: must have heads and layers, has {heads} and {layers}")
    if layers > len(stored.names):  # lists of the config have an entry for each layer
        raise CheckpointError(
            f"{path}: says that it has {layers} layers, and holds {len(stored.names)} tensors; give a whole file"
        )
    if family.rotary:
        config |= _attention(data, family, config, stored)
    config["tie_word_embeddings"] = "output.weight" not in stored
    config["vocab_size"] = _vocabulary(stored, path)
    config |= {f"{name}_token_id": data.token(key) for name, key in _TOKENS.items()}
    config["dtype"] = _dtype(stored, blocks)
    config |= family.more(data, config, frozenset(stored.names))
    data.skip("vocab_size", *_KNOWN_ELSEWHERE)
    if unknown := data.unknown():
        raise UnsupportedModelError(
            f"{path}: says of {data.architecture} what is not read from GGUF files: {', '.join(unknown[:_SHOWN])}; "
            "give the checkpoint in safetensors"
        )
    return config


def _attention(data: Metadata, family: Family, config: dict[str, Any], stored: StoredTensors) -> dict[str, Any]:
    """Returns what a config says of heads and of rope."""
    heads, path = config["num_attention_heads"], stored.path
    layers = config["num_hidden_layers"]
    kv_heads = data.numbers("attention.head_count_kv", layers) if data.has("attention.head_count_kv") else [heads]
    attending = {count for count in kv_heads if count}
    if len(attending) != 1:
        raise UnsupportedModelError(f"{path}: layers with different numbers of heads are not read from GGUF files")
    head_dim = data.whole("attention.key_length", config["hidden_size"] // heads)
    if data.whole("attention.value_length", head_dim) != head_dim:
        raise UnsupportedModelError(f"{path}: keys and values of different widths are not read from GGUF files")
    rope = rope_parameters(data, stored, head_dim, partial=family.partial)
    return {"num_key_value_heads": attending.pop(), "head_dim": head_dim, "rope_parameters": rope}


_KNOWN_ELSEWHERE = ("rope.dimension_count", "attention.head_count_kv", "rope.freq_base")
"""Read where heads turn, and without meaning elsewhere."""
_TOKENS = {"bos": "bos", "eos": "eos", "pad": "padding"}


def _vocabulary(stored: StoredTensors, path: Path) -> int:
    shape = stored.shape("token_embd.weight") if "token_embd.weight" in stored else ()
    if len(shape) != 2:
        raise CheckpointError(f"{path}: must hold the matrix token_embd.weight; give the file of a language model")
    return shape[0]


def _dtype(stored: StoredTensors, blocks: dict[str, BlockType]) -> str:
    """Returns the type that the model runs in: bfloat16 for blocks, else that of most bytes."""
    sizes: Counter[str] = Counter()
    for name in stored.names:
        sizes["bfloat16" if name in blocks else stored.dtype(name)] += stored.bytes(name)
    return sizes.most_common(1)[0][0]


def _summary(stored: StoredTensors, blocks: dict[str, BlockType]) -> str:
    """Returns the kind in words: the types of tensors, those with most bytes first, such as "gguf Q4_K Q6_K"."""
    sizes: Counter[str] = Counter()
    for name in stored.names:
        kind = blocks[name].name if name in blocks else stored.dtype(name)
        sizes[kind] += stored.bytes(name) if len(stored.shape(name)) > 1 else 0
    return " ".join(["gguf", *(name for name, size in sizes.most_common() if size)])


def _matrices(
    family: Family, config: dict[str, Any], stored: StoredTensors, blocks: dict[str, BlockType]
) -> Iterator[tuple[str, Decoded]]:
    """Yields every tensor of the model with its name there. Raises UnsupportedModelError for tensors that the family
    lacks."""
    strange = []
    for name in stored.names:
        if name in VECTORS:
            continue
        match = _LAYER.fullmatch(name)
        module = match[2] if match else name.rpartition(".")[0]
        target = _target(name, match, family)
        if target is None:
            strange.append(name)
            continue
        block = blocks.get(name)
        shape = stored.shape(name)
        if block is not None:
            shape = (*shape[:-1], shape[-1] // block.bytes * block.size)
        if "{}" in target:
            yield from _experts(Rows(stored, name), target, shape, block)
            continue
        if block is not None and (len(shape) != 2 or module in family.reshaped):
            raise UnsupportedModelError(
                f"{stored.path}: {name} has blocks of {block.name} and is no matrix: {list(shape)}"
            )
        if module in family.reshaped:
            shape = family.reshaped[module](shape)
        added = family.added if name.endswith("norm.weight") else 0.0
        rows = Rows(stored, name, order=_order(name, shape, family, config, stored))
        found = decoded(rows, shape, block, added)
        yield target, Transposed(found) if module in family.transposed and len(shape) == 2 else found
    if strange:
        more = f" and {len(strange) - _SHOWN} more" if len(strange) > _SHOWN else ""
        raise UnsupportedModelError(
            f"{stored.path}: holds tensors that {family.model_type} does not have: {', '.join(strange[:_SHOWN])}{more}"
            "; give the checkpoint in safetensors"
        )


def _target(name: str, match: re.Match[str] | None, family: Family) -> str | None:
    """Returns the model's name of a tensor; None if the family has none. match: of _LAYER."""
    module, _, kind = name.rpartition(".")
    if module in family.top:
        return f"{family.top[module]}.{kind}"
    if match is None or match[2] not in family.parts:
        return None
    return f"{family.layers}.{match[1]}.{family.parts[match[2]]}.{match[3]}"


def _experts(
    whole: Rows, target: str, shape: tuple[int, ...], block: BlockType | None
) -> Iterator[tuple[str, Decoded]]:
    """Yields the matrices of the experts of a tensor [experts, rows, columns]."""
    if len(shape) != 3:
        raise CheckpointError(f"{whole.stored.path}: {whole.name} must be a stack of matrices, is {list(shape)}")
    for number in range(shape[0]):
        yield target.format(number), decoded(expert(whole, number, shape[1]), shape[1:], block)


def _order(
    name: str, shape: tuple[int, ...], family: Family, config: dict[str, Any], stored: StoredTensors
) -> np.ndarray | None:
    """Returns the stored row of each row of q and k, where neighbours of the file turn together; None for others."""
    heads = {".attn_q.": "num_attention_heads", ".attn_k.": "num_key_value_heads"}
    found = [config[key] for part, key in heads.items() if part in name]
    if not family.pairs or not found:
        return None
    if not shape or not found[0] or shape[0] % (2 * found[0]):
        raise CheckpointError(f"{stored.path}: {name} must have rows for {found[0]} heads, is {list(shape)}")
    return np.arange(shape[0]).reshape(found[0], -1, 2).swapaxes(1, 2).reshape(-1)
