"""Draws the plots of a report with Bokeh, whose script the page holds: nothing is fetched when it is looked at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bokeh.embed import components
from bokeh.layouts import column
from bokeh.models import ColumnDataSource, FactorRange, HoverTool
from bokeh.models.annotations import Title
from bokeh.palettes import Category20
from bokeh.plotting import figure
from bokeh.resources import Resources
from bokeh.transform import dodge

from tensorwright.insight.devices.device import Device
from tensorwright.insight.report.collect import OpRow, ReportData, Run, StepRow

GREY = "#8a8a8a"
"""The colour of axes and texts: it can be read on white and on black."""
HEIGHT = 420
COLOURS = Category20[20]
MIB = 1 << 20


def script() -> str:
    """Returns Bokeh's own script, whole."""
    return str(Resources(mode="inline", components=["bokeh"]).render())


def draw(data: ReportData) -> tuple[str, dict[str, str]]:
    """Returns the script that fills the plots in, and the element of each plot by its name. Plots without data are left
    out."""
    plots: dict[str, Any] = {}
    if data.buffers:
        plots["memory"] = memory_map(data.buffers)
    if data.run is not None and data.run.ops:
        plots["roofline"] = roofline(data.run.ops, data.device)
        plots["predicted"] = predicted(data.run.ops)
    if data.run is not None and data.run.steps:
        plots["timeline"] = timeline(data.run.steps)
    if errors := output_errors(data.facts):
        plots["accuracy"] = by_layer(errors)
    if not plots:
        return "", {}
    filled, places = components(plots)
    return filled, places


def _figure(title: str, height: int = HEIGHT, **settings: Any) -> Any:
    plot = figure(
        title=Title(text=title, text_color=GREY), height=height, sizing_mode="stretch_width", output_backend="svg",
        toolbar_location="right", background_fill_alpha=0, border_fill_alpha=0, outline_line_color=GREY, **settings,
    )  # fmt: skip
    for axis in plot.axis:
        axis.axis_label_text_color = axis.major_label_text_color = GREY
        axis.axis_line_color = axis.major_tick_line_color = axis.minor_tick_line_color = GREY
    plot.grid.grid_line_alpha = 0.3
    return plot


def _legend(plot: Any, place: str, columns: int = 1) -> None:
    """Puts the legend inside the plot, at a place that is mostly empty. A click on an entry hides what it names."""
    legend = plot.legend
    legend.background_fill_alpha = legend.border_line_alpha = 0.0
    legend.label_text_color = GREY
    legend.label_text_font_size = "8pt"
    legend.click_policy = "hide"
    legend.location, legend.ncols = place, columns


def roofline(ops: Sequence[OpRow], device: Device) -> Any:
    """Every instruction of the run: operations per byte, and operations per second that it reached. Larger dots took a
    larger part of their phase."""
    plot = _figure("Roofline: what each instruction reached", x_axis_type="log", y_axis_type="log")
    plot.xaxis.axis_label, plot.yaxis.axis_label = "operations per byte", "GOP/s"
    counted = [op for op in ops if op.operations and op.bytes]
    xs = [op.operations / op.bytes for op in counted] or [1.0]
    span = [min(xs) / 2, max([*xs, *(device.turning_point(dtype) for dtype in device.peaks)]) * 4]
    for dtype, peak in device.peaks.items():
        turn = peak / device.bandwidth
        line = [span[0], turn, span[1]]
        plot.line(line, [min(device.bandwidth * x, peak) / 1e9 for x in line], color=GREY, line_dash="dashed")
        plot.text([span[1]], [peak / 1e9], [dtype], text_align="right", text_color=GREY, text_font_size="8pt")
    whole = {phase: sum(op.seconds for op in ops if op.phase == phase) for phase in {op.phase for op in ops}}
    kinds = list(dict.fromkeys((op.phase, op.op) for op in counted))
    for number, (phase, kind) in enumerate(kinds):
        rows = [op for op in counted if (op.phase, op.op) == (phase, kind)]
        source = ColumnDataSource({
            "x": [op.operations / op.bytes for op in rows],
            "y": [op.operations / op.seconds / 1e9 for op in rows],
            "size": [4 + 40 * (op.seconds / whole[phase]) ** 0.5 for op in rows],
            "module": [op.module for op in rows],
            "ms": [op.seconds * 1e3 for op in rows],
            "gbs": [op.bytes / op.seconds / 1e9 for op in rows],
        })  # fmt: skip
        dots = plot.scatter("x", "y", size="size", source=source, alpha=0.6, color=COLOURS[number % len(COLOURS)],
                            legend_label=f"{phase}: {kind}")  # fmt: skip
        plot.add_tools(HoverTool(renderers=[dots], tooltips=[
            ("", f"{phase}: {kind}"), ("module", "@module"), ("ms", "@ms{0.000}"), ("GOP/s", "@y{0.0}"),
            ("GB/s", "@gbs{0.0}"), ("operations per byte", "@x{0.00}"),
        ]))  # fmt: skip
    _legend(plot, "bottom_right", 3)
    return plot


def memory_map(buffers: Sequence[Mapping[str, Any]]) -> Any:
    """The buffers of a step over the plan's instructions: a box is the memory of a result, as long as it is needed."""
    drawn = []
    for of_rows, what in ((False, "a token"), (True, "a row of logits")):
        rows = [buffer for buffer in buffers if buffer["of_rows"] == of_rows]
        if not rows:
            continue
        plot = _figure(f"Memory of {what} over the plan", height=300 if not of_rows else 160)
        plot.xaxis.axis_label, plot.yaxis.axis_label = "instruction", "bytes"
        source = ColumnDataSource({
            "left": [row["first"] for row in rows], "right": [row["last"] + 1 for row in rows],
            "bottom": [row["offset"] for row in rows], "top": [row["offset"] + row["bytes"] for row in rows],
            "maker": [row["maker"] for row in rows], "bytes": [row["bytes"] for row in rows],
            "colour": [COLOURS[hash_of(row["maker"]) % len(COLOURS)] for row in rows],
        })  # fmt: skip
        boxes = plot.quad("left", "right", "top", "bottom", source=source, fill_color="colour", line_color=GREY,
                          fill_alpha=0.7, line_width=0.5)  # fmt: skip
        plot.add_tools(HoverTool(renderers=[boxes], tooltips=[
            ("made by", "@maker"), ("bytes", "@bytes"), ("instructions", "@left to @right"),
        ]))  # fmt: skip
        drawn.append(plot)
    return column(drawn, sizing_mode="stretch_width")


def hash_of(maker: str) -> int:
    """Returns a number of a buffer's maker, the same in every run and for every layer."""
    return sum(maker.partition(" ")[0].encode()) * 7 + sum(maker.rpartition(".")[2].encode())


def timeline(steps: Sequence[StepRow]) -> Any:
    """The steps of the run: sequences and waiting requests, tokens, and free blocks of the KV cache, over time."""
    zero = steps[0].begin
    times = {
        "left": [(s.begin - zero) * 1e3 for s in steps],
        "right": [(s.begin + s.seconds - zero) * 1e3 for s in steps],
    }
    batch = _figure("Timeline of the run: sequences of each step, and requests that wait", height=200)
    source = ColumnDataSource(times | {
        "sequences": [s.sequences for s in steps], "tokens": [s.tokens for s in steps],
        "waiting": [s.waiting for s in steps], "ms": [s.seconds * 1e3 for s in steps],
        "free": [s.free_blocks if s.free_blocks is not None else float("nan") for s in steps],
    })  # fmt: skip
    batch.quad("left", "right", "sequences", 0, source=source, color=COLOURS[0], alpha=0.7, legend_label="sequences")
    batch.step("left", "waiting", source=source, color=COLOURS[6], mode="after", legend_label="waiting")
    tokens = _figure("tokens of each step", height=160, x_range=batch.x_range)
    tokens.quad("left", "right", "tokens", 0, source=source, color=COLOURS[4], alpha=0.7)
    blocks = _figure("free KV blocks", height=160, x_range=batch.x_range)
    blocks.step("left", "free", source=source, color=COLOURS[2], mode="after")
    blocks.xaxis.axis_label = "ms"
    for plot in (batch, tokens):
        plot.add_tools(HoverTool(tooltips=[
            ("step", "@ms{0.00} ms"), ("tokens", "@tokens"), ("sequences", "@sequences"), ("waiting", "@waiting"),
        ]))  # fmt: skip
    _legend(batch, "top_right", 2)
    return column([batch, tokens, blocks], sizing_mode="stretch_width")


def predicted(ops: Sequence[OpRow]) -> Any:
    """The time of each kind of instruction in the run: measured, and predicted by the estimate."""
    sums: dict[tuple[str, str], list[float]] = {}
    for op in ops:
        pair = sums.setdefault((op.phase, op.op), [0.0, 0.0])
        pair[0] += op.seconds
        pair[1] += op.predicted
    largest = sorted(sums, key=lambda kind: -sums[kind][0])[:14][::-1]
    names = [f"{phase}: {op}" for phase, op in largest]
    plot = _figure("Estimate against measured, ms of the run", y_range=FactorRange(factors=names), height=440)
    for which, what, colour, shift in ((1, "estimate", COLOURS[1], 0.2), (0, "measured", COLOURS[0], -0.2)):
        source = ColumnDataSource({"name": names, "ms": [sums[kind][which] * 1e3 for kind in largest]})
        plot.hbar(
            dodge("name", shift, range=plot.y_range), right="ms", height=0.36, source=source, color=colour,
            legend_label=what,
        )  # fmt: skip
    _legend(plot, "bottom_right")
    return plot


def output_errors(facts: Mapping[str, Any]) -> dict[str, list[float | None]]:
    """Returns the relative errors of outputs by kind of matrix and layer, where they were measured at the build."""
    accuracy = facts.get("accuracy") or {}
    return {role: row for role, row in (accuracy.get("output_errors") or {}).items() if len(row) > 1}


def by_layer(errors: Mapping[str, Sequence[float | None]]) -> Any:
    """The relative error of each kind of output over the layers."""
    plot = _figure("Relative error of outputs by layer", height=320)
    plot.xaxis.axis_label, plot.yaxis.axis_label = "layer", "relative error"
    for number, (role, row) in enumerate(errors.items()):
        known = [(layer, value) for layer, value in enumerate(row) if value is not None]
        if known:
            layers, values = zip(*known, strict=True)
            plot.line(layers, values, color=COLOURS[2 * number % 20], legend_label=role)
            plot.scatter(layers, values, color=COLOURS[2 * number % 20], size=5)
    _legend(plot, "top_left")
    return plot


def total_seconds(run: Run) -> float:
    """Returns the time of all steps of a run."""
    return sum(step.seconds for step in run.steps)
