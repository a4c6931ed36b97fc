"""Rows of the explanation about numbers: formats of weights, activations and caches, and what they cost."""

from __future__ import annotations

from dataclasses import replace

from tensorwright.engine_format.dtypes import ITEM_BYTES
from tensorwright.engine_format.kv_cache import quantized_bits
from tensorwright.engine_format.weight_formats import LANES, WeightFormat, parse_format
from tensorwright.insight.estimate.costs import Work, is_matrix, token_bytes
from tensorwright.insight.explain.engine_view import EngineView, StepShape, caches_times, scaled
from tensorwright.insight.explain.finding import Finding, Status
from tensorwright.options.build import BuildFields
from tensorwright.options.declare import find

GROUP = "numbers"
PAGE = "docs/quantization.md"
OFFERED = ("w8a8", "int8", "int4", "w4a8", "int3:g64", "int2:g64")
"""The formats that an explanation names. Each has variants."""
LEAST_ADVISED_BITS = 4
"""Formats of fewer bits are shown, and are no advice."""
_COLUMNS = 4096
"""The columns of the matrix whose bits per weight stand for all."""


def rows(view: EngineView) -> list[Finding]:
    """Returns the rows of this file."""
    formats = [weight_format(view, name) for name in OFFERED] if view.target == "cpu" else [weights_elsewhere(view)]
    return [
        narrow_type(view),
        *formats,
        sparsity(view),
        calibration(view),
        cache_format(view, "int8"),
        cache_format(view, "int4"),
        cache_format(view, "fp8"),
    ]


def narrow_type(view: EngineView) -> Finding:
    name, about = "16 bits for weights and activations", "matrices, caches and inputs of products in 16 bits"
    if view.engine.dtype != "float32":

        def wide(work: Work, shape: StepShape) -> Work:
            if not is_matrix(work) or work.arithmetic != view.engine.dtype:
                return work
            return replace(scaled(work, weights=2.0), arithmetic="float32", weights="float32")

        return Finding(name, GROUP, about, Status.DONE, view.engine.dtype, view.without(change=wide))

    def narrow(work: Work, shape: StepShape) -> Work:
        if not is_matrix(work) or work.arithmetic != "float32":
            return work
        return replace(scaled(work, weights=0.5), arithmetic="bfloat16", weights="bfloat16")

    return Finding(
        name,
        GROUP,
        about,
        Status.LOSSY,
        "the engine is float32, as a float16 or float32 checkpoint is here",
        view.having(narrow),
        "build-engine --dtype bfloat16",
        "docs/performance.md",
    )


def _bits(fmt: WeightFormat) -> float:
    return fmt.panel_bytes(_COLUMNS) * 8 / (LANES * _COLUMNS)


def weight_format(view: EngineView, text: str) -> Finding:
    fmt = parse_format(text)
    bits, own = _bits(fmt), float(ITEM_BYTES[view.engine.dtype] * 8)
    name, about = f"weights in {text}", f"{bits:.2f} bits per weight, and activations of products rounded to 8"
    record = view.engine.config.quantization
    if record is not None:
        used = record.spec.linears
        if isinstance(used, WeightFormat) and used == fmt:

            def unrounded(work: Work, shape: StepShape) -> Work:
                return scaled(work, weights=own / bits) if work.arithmetic == "int8" else work

            saved = round(view.engine.config.sizes.get("weights", 0) * (own / bits - 1))
            accuracy = view.engine.config.accuracy
            lost = "" if accuracy is None or accuracy.kl_divergence is None else f"; KL {accuracy.kl_divergence:.3g}"
            return Finding(
                name,
                GROUP,
                about,
                Status.DONE,
                f"{record.spec.summary}{lost}",
                view.without(change=unrounded, saved=saved),
                "",
                PAGE,
            )
        if isinstance(used, WeightFormat) and _bits(used) <= bits:
            return Finding(name, GROUP, about, Status.NOT_APPLICABLE, f"the weights are in {used} already")
        own = _bits(used) if isinstance(used, WeightFormat) else own

    def rounded(work: Work, shape: StepShape) -> Work:
        if not is_matrix(work):
            return work
        op = "quantized_matmul" if work.op == "matmul" else work.op
        return replace(
            scaled(work, weights=bits / own), op=op, arithmetic="int8", weights=str(fmt) if fmt.group else "int8"
        )

    matrices = sum(work.weight_bytes for work in view.steps["decode"][1] if is_matrix(work))
    saved = round(matrices * (1 - bits / own))
    advised = fmt.bits >= LEAST_ADVISED_BITS
    return Finding(
        name,
        GROUP,
        about,
        Status.LOSSY,
        "what it costs is measured at every build" if advised else "too few bits for most models without training",
        view.having(rounded, saved),
        f"build-engine --quantize {text}" if advised else "",
        PAGE,
        one_of="weights",
    )


def weights_elsewhere(view: EngineView) -> Finding:
    record = view.engine.config.quantization
    about = "fewer bits for weights; activations stay as they are"
    if record is not None:
        return Finding("quantized weights", GROUP, about, Status.DONE, record.spec.summary, None, "", PAGE)
    return Finding(
        "quantized weights",
        GROUP,
        about,
        Status.LOSSY,
        "the weights are as in the checkpoint",
        None,
        "build-engine --quantize int4",
        PAGE,
    )


def sparsity(view: EngineView) -> Finding:
    name, about = "2:4 sparsity", "two of each four neighbours of a matrix are kept"
    record = view.engine.config.quantization
    if view.target != "cpu":
        return Finding(name, GROUP, about, Status.NOT_HERE, "target cpu alone has it")
    if record is not None and any(fmt.sparse for fmt in record.spec.formats):
        return Finding(name, GROUP, about, Status.DONE, record.spec.summary, None, "", PAGE)

    dense = None if record is None else record.spec.linears
    worth = None
    if isinstance(dense, WeightFormat) and dense.family in ("int8", "int4"):
        kept = _bits(replace(dense, sparse=True)) / _bits(dense)

        def halved(work: Work, shape: StepShape) -> Work:
            return scaled(work, weights=kept) if work.arithmetic == "int8" else work

        worth = view.having(halved)
    return Finding(
        name,
        GROUP,
        about,
        Status.LOSSY,
        "it costs much accuracy without training",
        worth,
        "",
        PAGE,
    )


def calibration(view: EngineView) -> Finding:
    name, about = "calibration (GPTQ, AWQ, SmoothQuant)", "a text chooses codes and scales of quantized matrices"
    record = view.engine.config.quantization
    if record is None:
        return Finding(name, GROUP, about, Status.NOT_APPLICABLE, "the weights are not quantized", None, "", PAGE)
    if record.calibration is not None:
        return Finding(name, GROUP, about, Status.DONE, record.calibration.method, None, "", PAGE)
    if view.target != "cpu":
        return Finding(name, GROUP, about, Status.NOT_HERE, "target cpu alone has it")
    return Finding(
        name,
        GROUP,
        about,
        Status.OFFERED,
        "the weights were rounded to the nearest; it costs build time, and no speed",
        None,
        "build-engine --calibrate gptq",
        PAGE,
    )


def cache_format(view: EngineView, dtype: str) -> Finding:
    head_dim = view.engine.config.model.head_dim or 128
    own = float(ITEM_BYTES[view.engine.dtype] * 8)
    bits = quantized_bits(dtype, head_dim) or own
    name, about = f"KV cache in {dtype}", f"{bits:g} bits for each number of the cache"
    stored = view.engine.config.stored_cache_dtype
    if stored == dtype:
        ratio = own / bits
        saved = 0 if view.costs is None else round(token_bytes(view.costs) * (ratio - 1) * view.context)
        return Finding(
            name,
            GROUP,
            about,
            Status.DONE,
            f"saved at {view.context} positions",
            view.without(change=caches_times(ratio), saved=saved),
            "",
            PAGE,
        )
    if (quantized_bits(stored, head_dim) or own) <= bits:
        return Finding(name, GROUP, about, Status.NOT_APPLICABLE, f"the cache is in {stored} already")
    if not view.attentions:
        return Finding(name, GROUP, about, Status.NOT_APPLICABLE, "no layer has a KV cache")
    option = find(BuildFields, "kv_cache_dtype")
    if view.target in option.lacks or (view.target, dtype) in option.lacks_value:
        return Finding(name, GROUP, about, Status.NOT_HERE, "its kernels read other caches")
    ratio = bits / own
    saved = 0 if view.costs is None else round(token_bytes(view.costs) * (1 - ratio) * view.context)
    return Finding(
        name,
        GROUP,
        about,
        Status.LOSSY,
        f"the cache is in {stored}; saved at {view.context} positions",
        view.having(caches_times(ratio), saved),
        f"build-engine --kv-cache-dtype {dtype}",
        PAGE,
        one_of="KV cache",
    )
