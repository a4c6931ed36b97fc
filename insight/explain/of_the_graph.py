"""Rows of the explanation that the graph answers: what passes recognised, fused and left."""

from __future__ import annotations

from tensorwright.insight.estimate.costs import Work, token_bytes
from tensorwright.insight.explain.engine_view import EngineView, StepShape, caches_times, passes_over, scaled
from tensorwright.insight.explain.finding import Finding, Status, Worth
from tensorwright.ir.graph import Node
from tensorwright.options.engine import DEFAULT_LIMITS
from tensorwright.passes.pipeline import PIPELINE, explain_miss
from tensorwright.passes.recognition import Step

GROUP = "graph"
F32 = 4
STEP_TOKENS = DEFAULT_LIMITS["max_num_tokens"]


def rows(view: EngineView) -> list[Finding]:
    """Returns the rows of this file."""
    return [
        attention(view),
        grouped_heads(view),
        latent_attention(view),
        fused_qkv(view),
        fused_gate_up(view),
        activation_in_product(view),
        rms_norms(view),
        sums_in_norms(view),
        layer_norms(view),
        rotary_in_cache_write(view),
        last_rows_alone(view),
        tied_tables(view),
        windows(view),
        folded_constants(view),
        shared_buffers(view),
    ]


def _finding(
    view: EngineView,
    name: str,
    about: str,
    *,
    wanted: int,
    got: int,
    why_not: str,
    worth: Worth | None,
    miss: str,
    what: str = "layers",
) -> Finding:
    """Returns the row of a rewrite that should be made `wanted` times. why_not: why there is nothing to rewrite. miss:
    the pass that says how close it came."""
    if wanted == 0 and got == 0:
        return Finding(name, GROUP, about, Status.NOT_APPLICABLE, why_not)
    if got >= wanted:
        return Finding(name, GROUP, about, Status.DONE, f"{got} {what}", worth)
    detail = f"{got} of {wanted} {what}; closest match: {closest(view, miss)}"
    return Finding(name, GROUP, about, Status.MISSED, detail, None, "tell us of the model: this is a gap of the passes")


def closest(view: EngineView, name: str) -> str:
    """Explains how close the pattern of a pass comes to matching in the engine's graph."""
    found: Step = next(step for phase in PIPELINE for step in phase.steps if step.name == name)
    return explain_miss(found, view.graph)


def attention(view: EngineView) -> Finding:
    heads = sum(int(node.attrs["heads"]) for node in view.attentions)

    def scores(shape: StepShape) -> list[Work]:
        # The scores are written, scaled and masked, made a softmax in three passes, and read again.
        moved = heads * shape.pairs * F32 * 12.0
        return [Work("elementwise", "", "float32", moved, moved / F32)]

    left = len(view.nodes("softmax"))
    return _finding(
        view,
        "flash attention",
        "scores, mask, softmax and sum in one operation, which never writes the scores",
        wanted=len(view.attentions) + left,
        got=len(view.attentions),
        why_not="no layer attends",
        worth=view.without(extra=scores),
        miss="recognise_attention",
        what="attentions",
    )


def grouped_heads(view: EngineView) -> Finding:
    name, about = "grouped heads (GQA, MQA)", "heads of queries share K and V, which are not repeated"
    groups = {_group(node) for node in view.attentions}
    shared = [node for node in view.attentions if _group(node) > 1]
    if not shared:
        return Finding(
            name,
            GROUP,
            about,
            Status.NOT_APPLICABLE,
            "every head has K and V of its own",
            None,
            "tensorwright convert-heads makes a start for grouped heads, which wants training" if groups == {1} else "",
        )
    largest = max(groups)
    saved = 0 if view.costs is None else round((largest - 1) * token_bytes(view.costs) * view.context)
    detail = f"{len(shared)} layers, {', '.join(str(group) for group in sorted(groups))} heads to each"
    return Finding(name, GROUP, about, Status.DONE, detail, view.without(change=caches_times(largest), saved=saved))


def _group(node: Node) -> int:
    return int(node.attrs["heads"]) // max(1, int(node.attrs.get("kv_heads", 1)))


def latent_attention(view: EngineView) -> Finding:
    about = "attention on the latent rows themselves, so that the cache holds no K and V of heads"
    count = view.count("fuse_latent_attention")
    expanded = view.engine.config.model.expanded_kv_elements
    if not count:
        return Finding("latent attention (MLA)", GROUP, about, Status.NOT_APPLICABLE, "no layer has latent rows")
    taken = view.engine.config.limits.kv_block_bytes / view.engine.config.limits.block_size
    saved = max(0, round((expanded or 0) * view.dtype_bytes - taken)) * view.context
    return Finding("latent attention (MLA)", GROUP, about, Status.DONE, f"{count} layers", Worth(bytes=saved))


def fused_qkv(view: EngineView) -> Finding:
    writes = len(view.nodes("rotary_kv_write"))
    got = min(writes, view.count("fuse_qkv", "join_qkv"))
    width = view.engine.config.model.hidden_size or 0
    return _finding(
        view,
        "one product for q, k and v",
        "their matrices are one, so the input is read once",
        wanted=writes,
        got=max(got, writes - _unfused(view)),
        why_not="no layer writes K and V of its own",
        worth=view.without(extra=lambda shape: passes_over(2 * writes, shape, width, view.dtype_bytes)),
        miss="fuse_qkv",
    )


def _unfused(view: EngineView) -> int:
    """Returns how many writes of K and V do not read one row of q, k and v that a product made."""
    made = ("linear", "rms_norm_columns", "elementwise", "layer_norm", "concat")
    return sum(
        node.inputs[0] is None or node.inputs[0].producer.op not in made for node in view.nodes("rotary_kv_write")
    )


def fused_gate_up(view: EngineView) -> Finding:
    gated = len(view.nodes("swiglu"))
    width = view.engine.config.model.hidden_size or 0
    return _finding(
        view,
        "one product for gate and up",
        "their matrices are one, so the input is read once",
        wanted=gated,
        got=min(gated, view.count("fuse_gate_up", "join_linears") or gated),
        miss="fuse_gate_up",
        why_not="no MLP has a gate, or experts hold them",
        worth=view.without(extra=lambda shape: passes_over(gated, shape, width, view.dtype_bytes)),
    )


def activation_in_product(view: EngineView) -> Finding:
    name, about = "activation inside the product", "the product of gate and up writes silu(gate) * up, and not both"
    gated = view.nodes("swiglu")
    if not gated:
        return Finding(name, GROUP, about, Status.NOT_APPLICABLE, "no MLP has a gate, or experts hold them")
    if view.target != "cpu":
        return Finding(name, GROUP, about, Status.NOT_HERE, "the library of the target decides what it joins")
    left = sum(work.op == "swiglu" for work in view.steps["decode"][1])
    widths = {int(node.output.shape[-1]) for node in gated}
    worth = view.without(extra=lambda shape: passes_over(len(gated) - left, shape, 4 * max(widths), F32))
    if left:
        return Finding(name, GROUP, about, Status.MISSED, f"{left} of {len(gated)} MLPs have an instruction for it")
    return Finding(name, GROUP, about, Status.DONE, f"{len(gated)} MLPs", worth)


def rms_norms(view: EngineView) -> Finding:
    count = view.count("recognise_rms_norm")
    width = view.engine.config.model.hidden_size or 0
    return _finding(
        view,
        "RMSNorm as one operation",
        "a square, a mean, a root and two products in one pass over the row",
        wanted=count + len(view.nodes("rsqrt")),
        got=count,
        why_not="the model has no such norms",
        what="norms",
        worth=view.without(extra=lambda shape: passes_over(4 * count, shape, 2 * width, F32)),
        miss="recognise_rms_norm",
    )


def sums_in_norms(view: EngineView) -> Finding:
    name, about = "residual sums inside norms", "the norm adds the residual, which is not written and read for it"
    count = view.count("fuse_add_rms_norm", "fuse_add_layer_norm")
    if not count:
        return Finding(
            name, GROUP, about, Status.NOT_APPLICABLE, "no norm follows a sum at once, as behind norms of outputs"
        )
    width = view.engine.config.model.hidden_size or 0
    worth = view.without(extra=lambda shape: passes_over(count, shape, 3 * width, F32))
    return Finding(name, GROUP, about, Status.DONE, f"{count} sums", worth)


def layer_norms(view: EngineView) -> Finding:
    about = "mean, variance and both vectors in one operation"
    count = view.count("recognise_layer_norm") + len(view.nodes("layer_norm"))
    if not count:
        return Finding("LayerNorm as one operation", GROUP, about, Status.NOT_APPLICABLE, "the model has no such norms")
    return Finding("LayerNorm as one operation", GROUP, about, Status.DONE, f"{len(view.nodes('layer_norm'))} norms")


def rotary_in_cache_write(view: EngineView) -> Finding:
    name, about = "rotary inside the write of the cache", "q and k are turned as K and V go to their blocks"
    writes = view.nodes("rotary_kv_write")
    turned = [node for node in writes if int(node.attrs.get("rotary_dim", 0)) > 0]
    if not turned:
        why = (
            "positions are not turned in, or the cache holds latents"
            if writes or view.attentions
            else "no layer attends"
        )
        return Finding(name, GROUP, about, Status.NOT_APPLICABLE, why)
    elements = max((int(n.attrs["heads"]) + int(n.attrs["kv_heads"])) * int(n.attrs["head_dim"]) for n in turned)
    worth = view.without(extra=lambda shape: passes_over(3 * len(turned), shape, 2 * elements, F32))
    return Finding(name, GROUP, about, Status.DONE, f"{len(turned)} layers", worth)


def last_rows_alone(view: EngineView) -> Finding:
    def all_rows(work: Work, shape: StepShape) -> Work:
        is_last = view.costs is not None and work.module == view.steps["decode"][1][-1].module
        return scaled(work, operations=shape.tokens / max(1, shape.rows)) if is_last else work

    return Finding(
        "logits of wanted rows alone",
        GROUP,
        "a prompt's other tokens get no logits",
        Status.DONE,
        "the rows are gathered before the last norm",
        view.without(change=all_rows),
    )


def tied_tables(view: EngineView) -> Finding:
    name, about = "one table for embedding and lm_head", "a model that ties them has the matrix once"
    record = view.engine.config.quantization
    tables = {
        str(node.inputs[0].producer.attrs["expr"]) for node in view.nodes("embedding") if node.inputs[0] is not None
    }
    products = {
        str(node.inputs[1].producer.attrs["expr"])
        for node in view.nodes("linear")
        if node.inputs[1] is not None and node.inputs[1].producer.op == "weight"
    }
    if not tables & products:
        return Finding(name, GROUP, about, Status.NOT_APPLICABLE, "the model does not tie them")
    apart = record is not None and record.spec.embedding != record.spec.lm_head
    size = (view.engine.config.model.hidden_size or 0) * view.engine.config.model.vocab_size * view.dtype_bytes
    detail = "stored once for each of two formats" if apart else "stored once"
    return Finding(name, GROUP, about, Status.DONE, detail, Worth(bytes=0 if apart else size))


def windows(view: EngineView) -> Finding:
    name, about = "caches of windows", "layers that look back a window keep no more than it"
    if view.costs is None:
        looking = [node for node in view.attentions if int(node.attrs.get("window", 0))]
        status = Status.DONE if looking else Status.NOT_APPLICABLE
        return Finding(name, GROUP, about, status, f"{len(looking)} layers with a window")
    groups = [group for group in view.costs.groups if group.window]
    if not groups:
        return Finding(name, GROUP, about, Status.NOT_APPLICABLE, "every layer sees all positions")
    length, block = view.engine.max_seq_len, view.costs.block_size
    saved = sum(group.block_bytes * max(0, length - group.window) // block for group in groups)
    detail = ", ".join(f"{group.window} positions" for group in groups)
    return Finding(name, GROUP, about, Status.DONE, f"{detail}; saved at {length} positions", Worth(bytes=saved))


def folded_constants(view: EngineView) -> Finding:
    names = ("fold_constants", "merge_common_subexpressions", "eliminate_dead_nodes")
    counts = ", ".join(f"{name} {view.count(name)}" for name in names)
    about = "what does not depend on the tokens is computed at build, and nothing twice"
    return Finding("constants folded, equal nodes merged", GROUP, about, Status.DONE, counts)


def shared_buffers(view: EngineView) -> Finding:
    name, about = "planned memory", "results of operations share memory where their lives do not overlap"
    if view.costs is None:
        return Finding(name, GROUP, about, Status.NOT_HERE, "the library of the target plans its own memory")
    taken = view.costs.memory(STEP_TOKENS, 1, 1, 1)
    written = sum(work.bytes - work.weight_bytes for work in view.costs.step([(view.prompt, view.prompt)], 1)) / 2
    saved = max(0, round(written - taken.activations))
    detail = f"{taken.activations / 1e6:.1f} MB for steps of {STEP_TOKENS} tokens"
    return Finding(name, GROUP, about, Status.DONE, detail, Worth(bytes=saved))
