"""insert_kv_cache:  one sequence [1, S, ...]  ->  many sequences, token-major [tokens, ...], with a paged KV cache

H query heads, Hkv key-value heads, D head dim, R rotated dims.  Except attention, everything in a decoder is per token.
So the axis of one sequence becomes an axis of tokens of many, and heads become columns. Attention of layer l is

    q, cache' = rotary_kv_write(qkv, table?, slots, kv_cache.l)       qkv: [tokens, (H + 2 Hkv) D], q: [tokens, H D]
    out       = paged_attention(q, cache', seq_starts, context_lens, block_tables, sinks?, slopes?)     [tokens, H D]

A layer that attends to the keys and values of an earlier one has no cache of its own. It writes nothing:

    q, cache' = rotary_kv_write(q, table?, slots, cache of that layer){kv_heads = 0}

Without rotation there is no table. Norms of q, k and v, of each head or of all heads together, come before the write:
qkv = rms_norm_columns(qkv, weight), or layer_norm_columns(qkv, weight, bias?).  Gains of q, vectors [D] that its
rotated heads are multiplied by, come after the write: q = mul(q, gain of every head), and so does a growth of q with
the position, a row [tokens, H D] that a table gives.
A recurrence gets a state per sequence instead (rewriting/carry_states.py). A norm of runs of a row is one of columns.
latent_attention has one row of K for all heads, [c | r] of L + P columns, whose first L columns are V too:

    kv        = rms_norm_columns(kv, norm)
    q, cache' = latent_kv_write(head_products(q, up_k), q, kv, table?, slots, kv_cache.l)
    out       = head_products(paged_attention(q, cache', ...), up_v)      q: [tokens, H (L + P)], out: [tokens, H O]

From the final norm on, only rows whose logits are wanted are computed: gather_rows(stream, logit_rows). A model with
heads that propose tokens has a further output, the features that they read, of every token. Heads have an input of
features, and give features of their own for the rows whose logits are wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorwright.errors import UnsupportedModelError
from tensorwright.ir import Graph, Node, Shape, Value
from tensorwright.ir import dims as dim_math
from tensorwright.ir.facts import HIDDEN, KvLayer
from tensorwright.ir.graph import STORED
from tensorwright.ir.ops import find_spec, infer
from tensorwright.ir.verify import CACHED_INPUTS, FEATURES, GIVEN_FEATURES
from tensorwright.passes.canonicalise_rows import ALONG_COLUMNS
from tensorwright.passes.rewriting.attention_vectors import vectors_of
from tensorwright.passes.rewriting.carry_states import FORMS, States, read_recurrence
from tensorwright.passes.rewriting.explain import located
from tensorwright.passes.rewriting.matcher import Match, describe, find_miss, match_value, pattern
from tensorwright.passes.rewriting.rewriter import make_node
from tensorwright.plugins.paged_attention.attention import how_of

_ATTENTION = """
    q_row   = slice(qkv, dim=-1, start=0, end=q_end, step=1)
    k_row   = slice(qkv, dim=-1, start=q_end, end=k_end, step=1)
    v_row   = slice(qkv, dim=-1, start=k_end, end=v_end, step=1)
    q       = view(rms_norm?(q_row, q_row_norm, eps=q_row_eps, weight_offset=q_row_offset))
    k       = view(rms_norm?(k_row, k_row_norm, eps=k_row_eps, weight_offset=k_row_offset))
    v       = view(v_row)
    v_rms   = rms_norm?(v, v_norm, eps=v_eps, weight_offset=v_offset)
    q_layer = layer_norm(q, q_scale, q_shift?, eps=q_eps, weight_offset=q_offset)
    k_layer = layer_norm(k, k_scale, k_shift?, eps=k_eps, weight_offset=k_offset)
    q_rms   = rms_norm?(q, q_norm, eps=q_eps, weight_offset=q_offset)
    k_rms   = rms_norm?(k, k_norm, eps=k_eps, weight_offset=k_offset)
    q_heads = rotary?(either(q_layer, q_rms), table, rotary_dim=rotary_dim)
    k_heads = rotary?(either(k_layer, k_rms), table, rotary_dim=rotary_dim)
    out     = attention(q_heads, k_heads, v_rms, sinks?, slopes?)
"""
PATTERN = pattern(_ATTENTION)
GAINED = pattern(_ATTENTION.replace("attention(q_heads,", "attention(mul(mul(q_heads, q_gain), k_gain),"))
"""The form that move_norms_before_rotary leaves: q is multiplied by the weights of both norms."""
GROWN = pattern(_ATTENTION.replace("attention(q_heads,", "attention(mul(q_heads, view(growth)),"))
"""The form that recognise_query_growth leaves: q is multiplied by a row of each token."""

READER = pattern("""
    q       = view(rms_norm?(q_row, q_row_norm, eps=q_row_eps, weight_offset=q_row_offset))
    q_rms   = rms_norm?(q, q_norm, eps=q_eps, weight_offset=q_offset)
    q_heads = rotary?(q_rms, table, rotary_dim=rotary_dim)
    out     = attention(q_heads, k_heads, v_heads, sinks?, slopes?)
""")
"""Attention to the keys and values of another layer."""

RENAMED = {"input_ids": "token_ids", "position_ids": "positions"}


def check(m: Match) -> None:
    m.bind_shape(m.q, "1 S H D")
    m.bind_shape(m.k, "1 S Hkv D")
    m.bind_shape(m.v, "1 S Hkv D")
    m.require((m.q_heads is None) == (m.k_heads is None), "only one of q and k is rotated", m.q)
    m.require(m.v_end == m.qkv.shape[-1], "q, k and v are not all of the fused linear", m.qkv)


def check_gains(m: Match) -> None:
    check(m)
    for gain in (m.q_gain, m.k_gain):
        m.bind_shape(gain, "D")
        m.require(gain.is_stored, "not a weight of the checkpoint or a constant", gain)
    m.notes["gains"] = (m.q_gain, m.k_gain)


def check_reader(m: Match) -> None:
    m.bind_shape(m.q, "1 S H D")


def check_growth(m: Match) -> None:
    check(m)
    m.bind_shape(m.growth, "1 S H*D")
    m.notes["growth"] = m.growth


def insert_kv_cache(graph: Graph) -> int:
    """Returns the number of caches and states. Raises UnsupportedModelError for a node that has no per-token form."""
    conversion = _TokenMajor(graph)
    conversion.run()
    graph.facts.kv_layers = conversion.layers
    graph.facts.state_layers = conversion.states.layers
    graph.stage = "cached"
    graph.drop_dead()
    return len(conversion.layers) + len(conversion.states.layers)


class _TokenMajor:
    """Rebuilds the graph in order. `moved` maps each old value to its new one."""

    def __init__(self, graph: Graph):
        self.graph = graph
        self.nodes: list[Node] = []
        self.scope = ""
        self.moved: dict[Value, Value] = {}
        self.layers: list[KvLayer] = []
        self.metadata = {name: self.emit("input", (), {}, kind, name) for name, kind in CACHED_INPUTS.items()}
        self.states = States(self.emit_all, self.metadata)
        self.written: dict[tuple[Value, Value], tuple[int, Value]] = {}
        """The layer and the cache that hold the keys and values of attention, by these."""
        self.owners = {(n.operand(1), n.operand(2)): n for n in reversed(graph.find("attention"))}
        """The first attention to read each pair of keys and values, which writes them into its cache."""
        self.attentions = {id(n): self.read_attention(n) for n in graph.find("attention")}
        self.recurrences = {id(n): self.read_recurrence(n) for n in graph.nodes if n.op in FORMS}
        matches = self.attentions | self.recurrences
        self.inside = {id(n) for m in matches.values() for n in m.nodes} - set(matches)
        self.heads = any(value.name == GIVEN_FEATURES for value in graph.inputs)
        # Heads that look at no other position (Medusa) run only for the rows whose logits are wanted, from the
        # features on.
        self.tail = (
            []
            if self.heads and not graph.find("attention") and not graph.find("latent_attention")
            else find_tail(graph)
        )
        # Heads may propose fewer tokens than they read.
        no_logits = self.heads or graph.facts.rows == HIDDEN
        self.vocabulary = graph.facts.vocab_size if no_logits else int(graph.outputs[0].shape[-1])

    def emit(
        self, op: str, inputs: Any, attrs: dict[str, Any], kind: tuple[str, Shape] | None = None, name: str = ""
    ) -> Value:
        """Adds a node with one result of type `kind`, which is inferred if not given."""
        return self.emit_all(op, inputs, attrs, [kind] if kind else None, name)[0]

    def emit_all(self, op: str, inputs: Any, attrs: dict[str, Any], kinds: Any = None, name: str = "") -> list[Value]:
        types = kinds if kinds is not None else infer(op, inputs, attrs)
        node = make_node(self.graph, op, inputs, attrs, types, self.scope, name or op)
        self.nodes.append(node)
        return node.outputs

    def run(self) -> None:
        for node in self.graph.nodes:
            self.scope = node.scope
            if id(node) not in self.inside:
                self.convert(node)
        self.graph.nodes = self.nodes
        self.graph.outputs = [self.result(self.moved[v]) for v in self.graph.outputs]

    def result(self, value: Value) -> Value:
        """Returns the rows of a heads' result whose logits are wanted; any result of a model as it is."""
        if not self.heads or value.shape[0] == "rows":
            return value
        return self.emit("gather_rows", [value, self.metadata["logit_rows"]], {})

    def read_attention(self, node: Node) -> Match:
        forms = ((PATTERN, check), (GAINED, check_gains), (GROWN, check_growth))
        match = next(filter(None, (match_value(node.output, *form) for form in forms)), None)
        if match is None and self.owners[node.operand(1), node.operand(2)] is not node:
            match = match_value(node.output, READER, check_reader)
        if match is None:
            miss = find_miss(self.graph, PATTERN, check, through=node)
            raise self.refusal(
                node, f"must read q and k, both rotated or neither, and plain v of one linear, in this order: {miss}"
            )
        return match

    def read_recurrence(self, node: Node) -> Match:
        match = read_recurrence(node)
        if match is None:
            miss = find_miss(self.graph, *FORMS[node.op], through=node)
            raise self.refusal(node, f"must read parts of one row in order, and decay by stored weights: {miss}")
        return match

    def refusal(self, node: Node, why: str) -> UnsupportedModelError:
        return refusal(self.graph, node, why)

    def convert(self, node: Node) -> None:
        if node.op == "input" and node.output.name == GIVEN_FEATURES:
            given = self.emit("input", (), {}, ("float32", ("tokens", node.output.shape[-1])), FEATURES)
            self.moved[node.output] = given if self.tail else self.result(given)
        elif node.op == "input":
            self.moved[node.output] = self.metadata[RENAMED.get(node.output.name, node.output.name)]
        elif node.op in STORED:
            self.nodes.append(node)
            self.moved[node.output] = node.output
        elif node.op == "view":
            self.moved[node.output] = self.flatten(node)
        elif node.op == "attention":
            self.moved[node.output] = self.convert_attention(self.attentions[id(node)])
        elif node.op == "causal_conv":
            self.moved[node.output] = self.states.carry_conv(node, self.moved[node.operand(0)])
        elif node.op == "state_space_scan":
            m = self.recurrences[id(node)]
            self.moved[node.output] = self.states.carry_scan(m, self.moved[m.row], self.moved[m.dt])
        elif node.op == "selective_scan":
            m = self.recurrences[id(node)]
            self.moved[node.output] = self.states.carry_selective_scan(
                m, [self.moved[v] for v in (m.x, m.dt, m.b, m.c)]
            )
        elif node.op == "delta_rule":
            m = self.recurrences[id(node)]
            self.moved[node.output] = self.states.carry_delta_rule(m, *(self.moved[v] for v in (m.row, m.dt, m.beta)))
        elif node.op == "linear_attention":
            m = self.recurrences[id(node)]
            self.moved[node.output] = self.states.carry_linear_attention(m, self.moved[m.row])
        elif node.op == "rg_lru":
            m = self.recurrences[id(node)]
            self.moved[node.output] = self.states.carry_rg_lru(m, [self.moved[v] for v in (m.x, m.gate, m.decay)])
        elif node.op == "rms_norm" and node.output.rank == 4:
            self.moved[node.output] = self.convert_norm_of_runs(node)
        elif node.op == "latent_attention":
            self.moved[node.output] = self.convert_latent(node)
        elif node.op == "embedding":
            self.moved[node.output] = self.convert_embedding(node)
        elif node.op in ALONG_COLUMNS or is_per_token(node):
            self.convert_rows(node)
        else:
            raise self.refusal(node, "has no form that is per token")

    def convert_embedding(self, node: Node) -> Value:
        """Converts a gather of rows by token, or by position.

        A table of positions must have max_seq_len rows, and a table of tokens a row for each of the vocabulary. Rows
        beyond the vocabulary, which stand for pieces of images, are left out.
        """
        table, ids = (self.moved[node.operand(i)] for i in (0, 1))
        if ids is self.metadata["positions"]:
            longest, rows = self.graph.facts.max_seq_len, table.shape[0]
            if int(rows) < longest:
                raise self.refusal(node, f"has {rows} positions; max_seq_len must be at most that, not {longest}")
        elif ids is self.metadata["token_ids"]:
            table = self.rows_of_vocabulary(node, table)
        else:
            raise self.refusal(node, "must read rows by token or by position, and nothing computed of these")
        return self.emit("embedding", [table, ids], {"scale": 1.0})

    def rows_of_vocabulary(self, node: Node, table: Value) -> Value:
        """Returns the rows of the tokens that the model has logits of."""
        rows, width, tokens = int(table.shape[0]), int(table.shape[1]), self.vocabulary
        if rows < tokens:
            raise self.refusal(node, f"has rows for {rows} tokens, and there are logits of {tokens}")
        if rows == tokens:
            return table
        expr = table.producer.attrs["expr"].slice(0, 0, tokens)
        return self.emit("weight", (), {"expr": expr}, (table.dtype, (tokens, width)))

    def convert_norm_of_runs(self, node: Node) -> Value:
        attrs = {"start": 0, "heads": node.output.shape[2], **node.attrs}
        return self.emit("rms_norm_columns", self.operands(node), attrs)

    def operands(self, node: Node) -> list[Value | None]:
        return [None if v is None else self.moved[v] for v in node.inputs]

    def flatten(self, node: Node) -> Value:
        """Drops a view that keeps the sequence axis. Such a view moves no element once heads are columns."""
        source = node.operand(0)
        if source.shape[:2] != node.output.shape[:2] or source.shape[0] != 1:
            raise self.refusal(node, "mixes positions, which is not per token")
        return self.moved[source]

    def convert_rows(self, node: Node) -> None:
        """Converts an op on [1, S, C] to the same op on [tokens, C]."""
        attrs = dict(node.attrs)
        for value in (*node.inputs, *node.outputs):
            if value is not None and value.rank > 2 and value.rank != 3:
                raise self.refusal(node, "works on heads, not on whole rows")
        if node.op in ALONG_COLUMNS:
            if attrs["dim"] != 2:
                raise self.refusal(node, "slices or joins positions, which is not per token")
            attrs["dim"] = 1
        operands = self.operands(node)
        if self.tail and node is self.tail[0]:
            rows = self.metadata["logit_rows"]
            operands = [
                self.emit("gather_rows", [v, rows], {}) if v is not None and v.shape[:1] == ("tokens",) else v
                for v in operands
            ]
        self.moved.update(zip(node.outputs, self.emit_all(node.op, operands, attrs), strict=True))

    def convert_attention(self, m: Match) -> Value:
        if m._pattern is READER:
            return self.convert_reader(m)
        layer = len(self.layers)
        heads, kv_heads, head_dim = int(m.dims["H"]), int(m.dims["Hkv"]), int(m.dims["D"])
        shape = {"layer": layer, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
        how = how_of(m.root.attrs)
        self.add_layer(kv_heads, head_dim, how)
        meta = self.metadata
        cache = self.emit("input", (), {}, ("kv", ()), f"kv_cache.{layer}")
        qkv = self.normalise_columns(m, self.moved[m.qkv])
        written = [qkv, None if m.table is None else self.moved[m.table], meta["slots"], cache]
        kind = (qkv.dtype, ("tokens", dim_math.mul(heads, head_dim)))
        attrs = {**shape, "rotary_dim": m.rotary_dim or 0}
        q, cache = self.emit_all("rotary_kv_write", written, attrs, [kind, ("kv", ())])
        self.written[m.root.operand(1), m.root.operand(2)] = (layer, cache)
        for gain in m.notes.get("gains", ()):
            q = self.emit("mul", [q, self.repeat(gain, heads)], {})
        if "growth" in m.notes:
            q = self.emit("mul", [q, self.moved[m.notes["growth"]]], {})
        read: list[Value | None] = [q, cache, meta["seq_starts"], meta["context_lens"], meta["block_tables"]]
        read += [None if v is None else self.moved[v] for v in vectors_of(m)]
        return self.emit("paged_attention", read, {**shape, **how}, kind)

    def convert_reader(self, m: Match) -> Value:
        """Converts attention to the keys and values that an earlier layer has written."""
        layer, cache = self.written[m.k_heads, m.v_heads]
        record = self.layers[layer]
        how = how_of(m.root.attrs)
        if (how["window"], how.get("chunked", False)) != (record.window, record.chunked):
            own, kept = span_name(how["window"], how.get("chunked", False)), span_name(record.window, record.chunked)
            raise self.refusal(m.root, f"has {own} in the cache of a layer with {kept}")
        heads = int(m.dims["H"])
        shape = {"layer": layer, "heads": heads, "head_dim": record.head_dim}
        meta = self.metadata
        q = self.normalise_queries(m, self.moved[m.q_row], heads * record.head_dim)
        written = [q, None if m.table is None else self.moved[m.table], meta["slots"], cache]
        attrs = {**shape, "kv_heads": 0, "rotary_dim": m.rotary_dim or 0}
        kind = (q.dtype, q.shape)
        q, cache = self.emit_all("rotary_kv_write", written, attrs, [kind, ("kv", ())])
        self.written[m.k_heads, m.v_heads] = (layer, cache)
        read: list[Value | None] = [q, cache, meta["seq_starts"], meta["context_lens"], meta["block_tables"]]
        read += [None if v is None else self.moved[v] for v in vectors_of(m)]
        return self.emit("paged_attention", read, {**shape, "kv_heads": record.kv_heads, **how}, kind)

    def add_layer(self, kv_heads: int, head_dim: int, how: dict[str, Any], v_dim: int = 0) -> None:
        """Adds a cache for attention of these attributes. Layers with the same window are one group."""
        window, chunked = int(how["window"]), how.get("chunked", False)
        windows = list(dict.fromkeys([*((one.window, one.chunked) for one in self.layers), (window, chunked)]))
        group = windows.index((window, chunked))
        self.layers.append(KvLayer(group, kv_heads, head_dim, window, v_dim=v_dim, chunked=chunked))

    def convert_latent(self, node: Node) -> Value:
        """Converts latent attention. Its layer has one head of K for all of q, and V is a part of K."""
        q, kv, norm, up_k, up_v = (self.moved[node.operand(i)] for i in range(5))
        table = node.optional(5)
        layer, heads, latent = len(self.layers), int(up_k.shape[0]), int(up_k.shape[1])
        shape = {"layer": layer, "heads": heads, "head_dim": int(kv.shape[1]), "v_dim": latent}
        how = how_of(node.attrs)
        self.add_layer(1, shape["head_dim"], how, latent)
        expanded = int(q.shape[1]) + heads * int(up_v.shape[1])
        self.graph.facts.expanded_kv_elements += expanded
        meta = self.metadata
        cache = self.emit("input", (), {}, ("kv", ()), f"kv_cache.{layer}")
        normalised = {"start": 0, "heads": 1, **{k: node.attrs[k] for k in ("eps", "weight_offset")}}
        kv = self.emit("rms_norm_columns", [kv, norm], normalised)
        absorbed = self.emit("head_products", [q, up_k], {})
        written = [absorbed, q, kv, None if table is None else self.moved[table], meta["slots"], cache]
        q, cache = self.emit_all("latent_kv_write", written, shape)
        read: list[Value | None] = [q, cache, meta["seq_starts"], meta["context_lens"], meta["block_tables"]]
        mixed = self.emit("paged_attention", read, {**shape, "kv_heads": 1, **how})
        return self.emit("head_products", [mixed, up_v], {})

    def repeat(self, vector: Value, heads: int) -> Value:
        """Returns a stored vector [D] once for every head, [heads * D]."""
        source = vector.producer
        kind = (vector.dtype, (heads * int(vector.shape[0]),))
        if source.op == "constant":
            return self.emit("constant", (), {"value": np.tile(np.asarray(vector.constant), heads)}, kind)
        expr = source.attrs["expr"]
        return self.emit("weight", (), {"expr": expr.concat([expr] * (heads - 1))}, kind)

    def normalise_columns(self, m: Match, qkv: Value) -> Value:
        """Returns qkv with its q, k and v columns normalised, if the model has norms of them."""
        qkv = self.normalise_queries(m, qkv, m.q_end)
        norms = ((m.k_row_norm, m.k_row_eps, m.k_row_offset), (m.k_norm, m.k_eps, m.k_offset))
        qkv = self.normalise_runs(qkv, m.q_end, m.k_end, norms)
        qkv = self.normalise_runs(qkv, m.k_end, m.v_end, ((m.v_norm, m.v_eps, m.v_offset),))
        for start, weight, bias, eps, offset in (
            (0, m.q_scale, m.q_shift, m.q_eps, m.q_offset),
            (m.q_end, m.k_scale, m.k_shift, m.k_eps, m.k_offset),
        ):
            if weight is None:
                continue
            width = int(m.dims["D"])
            heads = int(m.dims["H"] if start == 0 else m.dims["Hkv"])
            attrs = {"start": start, "heads": heads, "width": width, "eps": eps, "weight_offset": offset}
            operands = [qkv, self.moved[weight], None if bias is None else self.moved[bias]]
            qkv = self.emit("layer_norm_columns", operands, attrs)
        return qkv

    def normalise_queries(self, m: Match, row: Value, end: int) -> Value:
        norms = ((m.q_row_norm, m.q_row_eps, m.q_row_offset), (m.q_norm, m.q_eps, m.q_offset))
        return self.normalise_runs(row, 0, end, norms)

    def normalise_runs(self, row: Value, start: int, end: int, norms: Sequence[tuple[Any, float, float]]) -> Value:
        """Returns the row with columns [start, end) normalised by each norm, of which some are absent."""
        for weight, eps, offset in norms:
            if weight is not None:
                heads = (end - start) // int(weight.shape[0])
                attrs = {"start": start, "heads": heads, "eps": eps, "weight_offset": offset}
                row = self.emit("rms_norm_columns", [row, self.moved[weight]], attrs)
        return row


def span_name(window: int, chunked: bool) -> str:
    return f"{'a chunk' if chunked else 'a window'} of {window}"


def is_per_token(node: Node) -> bool:
    """Returns whether the record of the op says that it is the same op on [1, S, C] and on [tokens, C]."""
    spec = find_spec(node.op, "cached")
    return spec is not None and spec.per_token


def find_tail(graph: Graph) -> list[Node]:
    """Returns the nodes from the final norm to the logits. They run only for the rows whose logits are wanted.

    Where the features for heads are made of a result of the norm, they need every token's, and the norm is not in it.
    """
    if len(graph.outputs) > 2:
        raise UnsupportedModelError(
            f"a decoder must have one output, its logits, and features for heads at most, not {len(graph.outputs)}"
        )
    users = graph.users()
    node = graph.outputs[0].node
    tail: list[Node] = []
    while node is not None:
        tail.insert(0, node)
        spec = find_spec(node.op, "fused")
        if spec is not None and spec.kind == "norm":
            if _feeds_features(graph, node):
                tail.pop(0)
            inside = {id(n) for n in tail}
            leaks = [u for n in tail for v in n.outputs for u in users[v] if id(u) not in inside]
            if leaks:
                raise refusal(graph, leaks[0], "reads what is computed only for rows whose logits are wanted")
            return tail
        streams = [v for v in node.inputs if v is not None and v.node and not v.is_stored]
        node = streams[0].node if len(streams) == 1 and is_per_token(node) else None
    raise refusal(graph, tail[0], "is where the search for the final norm ended, upwards from the logits")


def _feeds_features(graph: Graph, norm: Node) -> bool:
    """Returns whether features for heads, the second output of a model, are made of a result of the final norm."""
    if len(graph.outputs) == 1 or any(value.name == GIVEN_FEATURES for value in graph.inputs):
        return False
    cone = {graph.outputs[1]}
    for node in reversed(graph.nodes):
        if not cone.isdisjoint(node.outputs):
            if node is norm:
                return True
            cone.update(v for v in node.inputs if v is not None)
    return False


def refusal(graph: Graph, node: Node, why: str) -> UnsupportedModelError:
    return UnsupportedModelError(located(graph, node, f"insert_kv_cache: {describe(node.outputs[0])} {why}"))
