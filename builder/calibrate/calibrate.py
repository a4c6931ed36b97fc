"""Calibrates the matrices of a graph on a text: one walk through the layers, with the codes that it chooses.

The text runs through the cached graph in the interpreter. A product's codes are chosen when the walk comes to it, so
memory holds the values between two layers, and the inputs' second moments of one product.
"""

from __future__ import annotations

from typing import Any

from tensorwright.builder.calibrate.calibrating_weights import CalibratingWeights
from tensorwright.builder.calibrate.chosen_codes import ChosenCodes
from tensorwright.builder.calibrate.outlier_columns import columns_record
from tensorwright.builder.calibrate.sample import Sample
from tensorwright.builder.emit.quantization_record import place_of, stored_matrices
from tensorwright.builder.measure.reference import gather_embeddings
from tensorwright.builder.measure.streamed_weights import stored
from tensorwright.builder.phases import Advance
from tensorwright.engine_format.calibrations import CALIBRATIONS
from tensorwright.ir.graph import STORED, Graph, Node
from tensorwright.ir.ragged import RaggedAdapter
from tensorwright.ir.walk import Walk
from tensorwright.models.checkpoint import Checkpoint


def calibrate(
    cached: Graph, checkpoint: Checkpoint, sample: Sample, codes: ChosenCodes, advance: Advance, method: str = "gptq"
) -> None:
    """Chooses the codes of every matrix that `calibrated_nodes` names. The graph does not change.

    advance: gets (matrices done, matrices in all). method: a name of CALIBRATIONS.
    """
    graph = cached.clone()
    nodes = calibrated_nodes(graph, method)
    if not nodes:
        return
    done = 0

    def count() -> None:
        nonlocal done
        done += 1
        advance(done, len({stored(node.operand(1)) for node in nodes}))

    inputs = RaggedAdapter(graph, sample.sequences).inputs([len(ids) for ids in sample.sequences])
    inputs.update(gather_embeddings(graph, checkpoint, inputs["token_ids"]))
    with CalibratingWeights(checkpoint, codes, nodes, CALIBRATIONS[method], count).running() as weights:
        walk = Walk(graph, {value.name: inputs[value.name] for value in graph.inputs}, weights)
        computed = [node for node in graph.nodes if node.op not in STORED]
        for _ in range(computed.index(nodes[-1]) + 1):
            walk.advance()


def calibrated_nodes(graph: Graph, method: str = "gptq") -> list[Node]:
    """Returns the products of a cached graph whose matrices are calibrated, in order. method: a name of CALIBRATIONS.

    Left out are matrices of mxfp4 and w4a8; embeddings, whose rows have no inputs; the experts of mixtures; the
    matrices of heads; and 2:4 sparse ones, where the method is not for them. An embedding that is lm_head too, in one
    format, has the codes of lm_head.
    """
    return [
        node
        for node in graph.find("quantized_linear")
        if node.operand(1).producer.op == "weight" and CALIBRATIONS[method].codes_format(node.attrs["format"])
    ]


def calibration_record(
    cached: Graph, method: str, sample: Sample, gains: dict[str, list[float | None]] | None = None
) -> dict[str, Any]:
    """Returns the entry of config.json: the method, the text, the matrices that are left out, the gains of channel
    scales and the columns that are kept, where there are some."""
    nodes = calibrated_nodes(cached, method)
    columns = columns_record(cached) if CALIBRATIONS[method].outliers else None
    chosen = {(stored(node.operand(1)), node.attrs["format"]) for node in nodes}
    names = [
        place_of(node, expr)[0]
        for node in cached.nodes
        if "format" in node.attrs
        for _, expr in stored_matrices(node)
        if (expr, node.attrs["format"]) not in chosen
    ]
    reached = {**(gains or {}), **(columns or {})} if not nodes else {}
    nearest = [name for name in dict.fromkeys(names) if name not in reached]
    more = {"scale_gains": gains, "outlier_columns": columns}
    found = {name: entry for name, entry in more.items() if entry is not None}
    return {"method": method, **sample.record(), "rounded_to_nearest": nearest, **found}
