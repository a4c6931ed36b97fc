"""A whole engine directory around the toy llama: real plan and weights, a byte tokenizer, opened in milliseconds."""

from __future__ import annotations

from pathlib import Path

from support.fake_runtime import engine_config, write_checksums, write_engine
from support.toy_llama import ToyLlama
from tensorwright.builder.emit.engine_files import kv_block_bytes
from tensorwright.ir.facts import Facts, KvLayer

VOCAB = 257  # the byte tokenizer's
MAX_SEQ_LEN = 128
ENDLESS = 60_000
"""A request of so many tokens still runs whenever a test looks, however fast the machine is: its engine is made with a
max_seq_len above that, and they take a minute, since attention reads all tokens before."""
FILES = (
    "config.json", "cpu/plan.bin", "cpu/weights.bin", "generation_config.json", "graph.txt", "tokenizer.json",
)  # fmt: skip


def make_toy(**changes: int) -> ToyLlama:
    return ToyLlama(vocab=VOCAB, **{"max_seq_len": MAX_SEQ_LEN, "block_size": 32, **changes})


def write_toy_engine(path: Path, toy: ToyLlama | None = None, states: tuple[int, ...] = ()) -> Path:
    """An engine directory that runs. states: bytes of recurrent layers' states, which no instruction uses."""
    toy = toy or make_toy()
    layers = [KvLayer(0, toy.kv_heads, toy.head_dim, 0)] * toy.layers
    block = kv_block_bytes(Facts(dtype="float32", block_size=toy.block_size, kv_layers=layers))
    limits = {"max_seq_len": toy.max_seq_len, "block_size": toy.block_size, "kv_block_bytes": block}
    if states:
        limits["state_bytes"] = sum(states)
    write_engine(path, engine_config(limits=limits))
    plan = toy.plan()
    plan.states += states
    plan.write(path / "cpu")
    seal(path)
    return path


def seal(path: Path) -> None:
    """Makes the checksums true again, as whoever altered the engine on purpose could."""
    write_checksums(path, [name for name in FILES if (path / name).exists()])
