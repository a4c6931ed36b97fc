"""Rows of the explanation about the runtime: memory of caches, scheduling, kernels, decoding, and several devices."""

from __future__ import annotations

from dataclasses import replace

from tensorwright.engine_format.engine_config import HeadsRecord
from tensorwright.engine_format.targets import TARGETS
from tensorwright.insight.estimate.costs import Work
from tensorwright.insight.explain.engine_view import BATCH, EngineView, StepShape, scaled
from tensorwright.insight.explain.finding import Finding, Status, Worth
from tensorwright.options.engine import DEFAULT_LIMITS
from tensorwright.runtime.base.host import default_threads

SCHEDULING, MEMORY, KERNELS, DECODING, DEVICES = "scheduling", "memory", "kernels", "decoding", "several devices"


def rows(view: EngineView) -> list[Finding]:
    """Returns the rows of this file."""
    return [
        paging(view),
        prefix_reuse(view),
        shared_copies(view),
        mapped_weights(view),
        offload(view),
        eviction(view),
        batching(view),
        chunked_prefill(view),
        sparse_prefill(view),
        preemption(view),
        overlap(view),
        disaggregation(view),
        packed_weights(view),
        *instruction_sets(view),
        split_decode(view),
        threads(view),
        tuned(view),
        nodes(view),
        graphs(view),
        *proposals(view),
        guided(view),
        beams(view),
        *parallelism(view),
    ]


def paging(view: EngineView) -> Finding:
    name, about = "paged KV cache", "a sequence holds blocks as it grows, and not its longest length from the start"
    if view.target == "onnx":
        return Finding(name, MEMORY, about, Status.NOT_HERE, "its cache is a row of positions for each sequence")
    limits = view.engine.config.limits
    unused = max(0, view.engine.max_seq_len - view.context - 1)
    saved = round(BATCH * unused * limits.kv_block_bytes / limits.block_size)
    detail = f"blocks of {limits.block_size} positions; saved with {BATCH} sequences of {view.context}"
    return Finding(name, MEMORY, about, Status.DONE, detail, Worth(bytes=saved), "", "docs/operating.md")


def prefix_reuse(view: EngineView) -> Finding:
    name, about = "prefix reuse", "prompts with the same beginning share its blocks, and compute it once"
    if view.target == "onnx":
        return Finding(name, MEMORY, about, Status.NOT_HERE, "its cache shares nothing")
    detail = "on by default; a prompt whose first half is known computes the other half"
    prefill = None
    if view.costs is not None:
        half = max(1, view.prompt // 2)
        rest = [view.costs.step([(view.prompt - half, view.prompt)], 1)] if view.prompt > half else []
        prefill = view.seconds["prefill"] / view.time(rest[0]) if rest else None
    return Finding(name, MEMORY, about, Status.DONE, detail, Worth(prefill=prefill), "", "docs/serving.md")


def shared_copies(view: EngineView) -> Finding:
    about = "completions of one prompt, and beams, share blocks until they write"
    if view.target == "onnx":
        return Finding("copy on write", MEMORY, about, Status.NOT_HERE, "its cache shares nothing")
    return Finding("copy on write", MEMORY, about, Status.DONE, "for n > 1, best_of and beams")


def mapped_weights(view: EngineView) -> Finding:
    about = "processes share the pages of one file, and a start reads none of it twice"
    if view.target != "cpu":
        return Finding("mapped weights", MEMORY, about, Status.NOT_HERE, "the library of the target loads its own file")
    return Finding(
        "mapped weights",
        MEMORY,
        about,
        Status.DONE,
        "load=map; load=copy takes huge pages instead",
        None,
        "",
        "docs/operating.md",
    )


def offload(view: EngineView) -> Finding:
    about = "weights or blocks that do not fit lie on another memory, and come when they are needed"
    if view.target == "cpu":
        detail = "mapped weights are read from the disk where memory is short, slowly; blocks are computed again"
        return Finding("offload", MEMORY, about, Status.NOT_APPLICABLE, detail)
    return Finding("offload", MEMORY, about, Status.NOT_HERE, "weights and caches must fit on the GPU")


def eviction(view: EngineView) -> Finding:
    about = "positions of the cache that matter little are dropped (StreamingLLM, H2O, SnapKV)"
    name, page = "eviction from the KV cache", "docs/long-contexts.md"
    if view.target != "cpu":
        return Finding(name, MEMORY, about, Status.NOT_HERE, "only target cpu frees blocks that layers do not see")
    window = view.engine.config.build_options.get("attention_window")
    if window is not None:
        return Finding(name, MEMORY, about, Status.DONE, f"a window of {window} and sink tokens", None, "", page)
    budget = view.engine.kv_budget
    if budget is not None:
        detail = f"blocks of {budget} positions stay, by scores"
        return Finding(name, MEMORY, about, Status.DONE, detail, None, "", page)
    detail = "a window or a budget by scores bounds the blocks of a sequence, and changes answers"
    option = "build-engine --attention-window N, or --kv-budget N"
    return Finding(name, MEMORY, about, Status.LOSSY, detail, None, option, page)


def batching(view: EngineView) -> Finding:
    about = "requests join and leave at every step, and a step reads the weights once for all of them"
    worth = None
    if view.costs is not None:
        worth = Worth(batch=BATCH * view.seconds["decode"] / view.seconds["batch"])
    return Finding("in-flight batching", SCHEDULING, about, Status.DONE, f"{BATCH} sequences beside one by one", worth)


def chunked_prefill(view: EngineView) -> Finding:
    about = "a long prompt is computed in parts beside the tokens of others, which do not wait for all of it"
    tokens = DEFAULT_LIMITS["max_num_tokens"]
    return Finding(
        "chunked prefill",
        SCHEDULING,
        about,
        Status.DONE,
        f"at most {tokens} tokens of a step",
        None,
        "",
        "docs/operating.md",
    )


def sparse_prefill(view: EngineView) -> Finding:
    name, page = "sparse prefill", "docs/long-contexts.md"
    about = "queries of a long prompt see the blocks of keys that weigh most (MInference, FlexPrefill, XAttention)"
    if view.target != "cpu":
        return Finding(name, SCHEDULING, about, Status.NOT_HERE, "only target cpu chooses blocks of keys")
    budget = view.engine.config.build_options.get("sparse_prefill")
    if budget is not None:
        return Finding(name, SCHEDULING, about, Status.DONE, f"at most {budget} positions", None, "", page)
    detail = "saves time where attention is most of a prompt's work, and changes answers"
    return Finding(name, SCHEDULING, about, Status.LOSSY, detail, None, "build-engine --sparse-prefill N", page)


def preemption(view: EngineView) -> Finding:
    about = "where blocks run out, the youngest request gives its own back and is computed again"
    return Finding("preemption", SCHEDULING, about, Status.DONE, "its tokens stay the same")


def overlap(view: EngineView) -> Finding:
    about = "the next step is planned, and the last one's tokens are handed out, while a step computes"
    detail = "tokens are handed out beside the next step; planning takes 3 to 5 % of a step of a very small model"
    return Finding("overlapped scheduling", SCHEDULING, about, Status.DONE, detail, None, "", "docs/performance.md")


def disaggregation(view: EngineView) -> Finding:
    about = "prompts and decoding run on machines of their own"
    return Finding("disaggregation", SCHEDULING, about, Status.NOT_HERE, "not built")


def packed_weights(view: EngineView) -> Finding:
    about = "matrices lie in panels of 16 rows, as the kernels read them, with scales beside their numbers"
    if view.target != "cpu":
        return Finding("packed weights", KERNELS, about, Status.NOT_HERE, "the library of the target packs its own")
    return Finding("packed weights", KERNELS, about, Status.DONE, "made at build")


def instruction_sets(view: EngineView) -> list[Finding]:
    """Returns a row for each family of kernels: what was taken on this machine, and what it lacks for better ones."""
    about = "the best kernels that this processor admits; all give the same bits, but those in bfloat16 and its tiles"
    if view.target != "cpu":
        return [Finding("instruction sets", KERNELS, about, Status.NOT_HERE, "the library of the target chooses")]
    taken = ", ".join(
        f"{choice['family']}: {choice['taken']}" for choice in view.dispatch if _used(view, choice["family"])
    )
    lacking = sorted(
        {reason for choice in view.dispatch if _used(view, choice["family"]) for reason in choice["refused"]}
    )
    found = [Finding("instruction sets", KERNELS, about, Status.DONE, taken)]
    if lacking:
        found.append(
            Finding(
                "better instruction sets",
                KERNELS,
                "kernels that exist, and that this machine refuses",
                Status.NOT_APPLICABLE,
                "; ".join(lacking),
            )
        )
    return found


def _used(view: EngineView, family: str) -> bool:
    """Returns whether the engine has instructions of a family of kernels, which may be of one type of weights alone."""
    names = {"attention_combine", f"attention {view.engine.config.stored_cache_dtype}"} if view.attentions else set()
    for work in view.steps["decode"][1]:
        names |= {work.op, f"{work.op} {work.weights.partition(':')[0]}"}
    return family in names


def split_decode(view: EngineView) -> Finding:
    name, about = (
        "split decode (flash decoding)",
        "the cache of one long sequence is read by all threads, and not by one",
    )
    if view.target != "cpu":
        status = Status.DONE if view.target.startswith("tensorrt") else Status.NOT_HERE
        return Finding(name, KERNELS, about, status, "the plugin of attention splits" if status is Status.DONE else "")
    units = max((int(node.attrs.get("kv_heads", 1)) for node in view.attentions), default=0)
    if not units:
        return Finding(name, KERNELS, about, Status.NOT_APPLICABLE, "no layer has a KV cache")
    count = default_threads()
    lost = count / min(count, units)

    def alone(work: Work, shape: StepShape) -> Work:
        apart = work.op == "paged_attention" and shape.tokens == 1
        return scaled(work, others=lost, operations=lost) if apart else work

    detail = f"{units} heads of K and V and {count} threads: without it {min(units, count)} would work"
    return Finding(name, KERNELS, about, Status.DONE, detail, view.without(change=alone))


def threads(view: EngineView) -> Finding:
    about = "every instruction is cut into tasks for a team of threads"
    if view.target != "cpu":
        return Finding("threads", KERNELS, about, Status.NOT_HERE, "the library of the target cuts its own work")
    count = default_threads()
    if count == 1:
        return Finding("threads", KERNELS, about, Status.NOT_APPLICABLE, "this machine has one core")
    return Finding("threads", KERNELS, about, Status.DONE, f"{count} on this machine; --measure says what they bring")


def tuned(view: EngineView) -> Finding:
    name, about = "tuning", "threads and sizes of tasks are measured on the machine, and kept beside the engine"
    if view.target != "cpu":
        return Finding(name, KERNELS, about, Status.NOT_HERE, "the library of the target tunes at build")
    if view.tuning is not None:
        return Finding(name, KERNELS, about, Status.DONE, view.tuning)
    return Finding(
        name,
        KERNELS,
        about,
        Status.OFFERED,
        "the defaults are used; they were best on the machines measured",
        None,
        "tensorwright tune ENGINE",
        "docs/operating.md",
    )


def nodes(view: EngineView) -> Finding:
    name, about = "memory by NUMA node", "threads and the weights that they read lie on the same node"
    if view.target != "cpu":
        return Finding(name, KERNELS, about, Status.NOT_HERE, "the library of the target places its memory")
    if view.numa_nodes < 2:
        return Finding(name, KERNELS, about, Status.NOT_APPLICABLE, "this machine has one node")
    return Finding(
        name,
        KERNELS,
        about,
        Status.OFFERED,
        f"{view.numa_nodes} nodes; weights that are copied are split",
        None,
        "tensorwright serve ENGINE --load copy",
        "docs/operating.md",
    )


def graphs(view: EngineView) -> Finding:
    about = "a whole step is launched at once (CUDA graphs)"
    if view.target == "cpu":
        return Finding("graphs of launches", KERNELS, about, Status.NOT_APPLICABLE, "a processor launches nothing")
    return Finding("graphs of launches", KERNELS, about, Status.NOT_HERE, "not built")


def proposals(view: EngineView) -> list[Finding]:
    """Returns the rows of speculation: a step of several tokens costs little more than one of one token."""
    about = "tokens are proposed, and one step verifies several of them; answers stay the same, bit for bit"
    if not TARGETS[view.target].verifies_proposals:
        able = " and ".join(name for name, target in TARGETS.items() if target.verifies_proposals)
        return [Finding("speculation", DECODING, about, Status.NOT_HERE, f"the targets {able} alone verify proposals")]
    page = "docs/speculation.md"
    right = _verified(view, 4)
    worth = None if right is None else Worth(decode=right, how="roofline, at most")
    free = "if 4 proposals are right each time; it costs nothing where a text repeats nothing"
    found = [
        Finding(
            "speculation: ngram, suffix", DECODING, about, Status.OFFERED, free, worth, "--speculative ngram", page
        ),
        Finding(
            "speculation: a draft model",
            DECODING,
            about,
            Status.OFFERED,
            "wants a much smaller model with the same tokenizer",
            worth,
            "--speculative draft,model=ENGINE",
            page,
        ),
    ]
    heads: HeadsRecord | None = view.engine.config.heads
    name = "speculation: heads (EAGLE-3, Medusa, MTP)"
    if heads is not None:
        detail = f"{heads.kind} heads are built in; {free.partition(';')[0]}"
        found.append(Finding(name, DECODING, about, Status.OFFERED, detail, worth, "--speculative heads", page))
    else:
        detail = "the engine was built without heads"
        found.append(Finding(name, DECODING, about, Status.OFFERED, detail, None, "build-engine --heads DIR|mtp", page))
    trees = "built as chains: measured, a tree of 8 brought nothing on these processors"
    found.append(Finding("speculation: trees of tokens", DECODING, about, Status.NOT_HERE, trees, None, "", page))
    return found


def _verified(view: EngineView, count: int) -> float | None:
    """Returns how many times as fast decoding is if `count` proposals are right in each step."""
    if view.costs is None or view.context < count:
        return None
    step = view.time(view.costs.step([(count + 1, view.context + 1)], count + 1))
    return (count + 1) * view.seconds["decode"] / step


def guided(view: EngineView) -> Finding:
    about = "grammars and schemas are compiled to masks of tokens, which cost a few microseconds of a step"
    return Finding(
        "guided decoding",
        DECODING,
        about,
        Status.DONE,
        "JSON, regular expressions, choices, grammars",
        None,
        "",
        "docs/guided-decoding.md",
    )


def beams(view: EngineView) -> Finding:
    about = "the likeliest whole answers are searched, with blocks that beams share"
    return Finding(
        "beam search", DECODING, about, Status.OFFERED, "beam_width of a request", None, "", "docs/beam-search.md"
    )


def parallelism(view: EngineView) -> list[Finding]:
    about = {
        "tensor parallel": "devices hold a part of every matrix",
        "pipeline parallel": "devices hold layers of their own",
        "expert parallel": "devices hold experts of their own",
        "data parallel": "copies of the engine share the requests",
    }
    found = [Finding(name, DEVICES, text, Status.NOT_HERE, "not built") for name, text in about.items()]
    if not view.nodes("experts"):
        found[2] = replace(found[2], status=Status.NOT_APPLICABLE, detail="the model has no experts")
    found[3] = replace(found[3], detail="not built; several servers behind a balancer do it, and share mapped weights")
    return found
