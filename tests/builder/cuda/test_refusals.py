"""What target cuda cannot run is refused by name, before any kernel is compiled."""

from __future__ import annotations

import pytest

from support.cuda_model import MAX_STEP
from support.plugin_form import lower
from tensorwright.builder.emit.cuda.emit import plan_graph
from tensorwright.builder.options import BuildOptions
from tensorwright.builder.target import cuda
from tensorwright.errors import InvalidOptionError, LoweringError


@pytest.mark.parametrize(
    ("variant", "config", "message"),
    [
        ("minicpm3", {"kv_lora_rank": 12}, "a latent row must have 16 to 512 columns, got 12; build with target cpu"),
        ("llama", {}, "head_dim must be 16 to 256, got 8; build with target cpu"),
    ],
)
def test_graphs_without_kernels(case, variant: str, config: dict, message: str) -> None:
    made = case(variant, **config)
    with pytest.raises(LoweringError, match=message):
        plan_graph(lower(made.graph, "float16", block=32), made.checkpoint, "float16", MAX_STEP).traced(90)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sm": (90, 91)}, "an engine cannot be built for SM 91: our GPU kernels are compiled for 75, 80"),
        (
            {"sm": (75,), "dtype": "bfloat16"},
            "bfloat16 cannot be built for SM 75: .* or another --dtype",
        ),
        ({"sm": (75, 80), "dtype": "float16", "kv_cache_dtype": "fp8"}, "fp8 KV cache cannot be built for SM 75: it"),
        ({"max_batch_size": 64, "max_num_tokens": 32}, "max_num_tokens must be at least max_batch_size"),
    ],
)
def test_options(options: dict, message: str) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        cuda.check(BuildOptions(target="cuda", **options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quantize": "int8:wo"}, "target cuda keeps activations as they are in any format"),
        ({"quantize": "int4:g64,embedding=int4"}, "on target cuda the embedding must be int8 or none"),
        ({"kv_cache_dtype": "int4"}, "kv_cache_dtype must not be int4 on target cuda: the kernels of GPUs read"),
        ({"int4_kernel": "plugin"}, "int4_kernel"),
        ({"tensor_parallel": 2}, "tensor_parallel"),
    ],
)
def test_options_of_other_targets(options: dict, message: str) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        BuildOptions(target="cuda", **options)


def test_the_type_follows_the_checkpoint_and_the_gpus() -> None:
    every = BuildOptions(target="cuda")
    assert every.sm == (80, 90)
    assert [cuda.activation_dtype(every, native) for native in ("bfloat16", "float16", "float32")] == [
        "bfloat16", "float16", "float16",
    ]  # fmt: skip
    with pytest.raises(InvalidOptionError, match="SM 75 has no bfloat16"):
        cuda.activation_dtype(BuildOptions(target="cuda", sm=(75,)), "bfloat16")
