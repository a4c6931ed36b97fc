"""Lists the ways in which a build may calibrate quantized weights on a text: the values of the option `calibrate`.

A way has up to three parts. One scales the input channels of matrices and divides what makes the inputs, which changes
nothing but what rounding costs; or it keeps the largest channels as they are. One chooses which weights 2:4 sparse
matrices keep. The last chooses the codes of the matrices.
"""

from __future__ import annotations

from dataclasses import dataclass

from tensorwright.engine_format.weight_formats import WeightFormat

AWQ, SMOOTHQUANT = "awq", "smoothquant"


@dataclass(frozen=True)
class Calibration:
    """One value of the option. scales: "" or the method that chooses channel scales. codes: whether GPTQ chooses
    codes. prunes: whether the inputs' norms decide what 2:4 sparse matrices keep (Wanda). outliers: whether the largest
    channels of inputs are kept as they are."""

    scales: str = ""
    codes: bool = False
    prunes: bool = False
    outliers: bool = False

    def scales_format(self, fmt: WeightFormat) -> bool:
        """Returns whether channel scales are chosen for matrices of this format."""
        return bool(self.scales) and scales_format(self.scales, fmt)

    def codes_format(self, fmt: WeightFormat) -> bool:
        """Returns whether the codes of matrices of this format are chosen, or which of their weights are kept."""
        return (self.codes and fmt.has_codes) or (self.prunes and fmt.sparse)

    def keeps_format(self, fmt: WeightFormat) -> bool:
        """Returns whether products with matrices of this format may keep channels of their inputs."""
        return self.outliers and rounds_inputs(fmt)


CALIBRATIONS = {
    "none": Calibration(),
    "gptq": Calibration(codes=True),
    "awq": Calibration(AWQ),
    "awq+gptq": Calibration(AWQ, codes=True),
    "smoothquant": Calibration(SMOOTHQUANT),
    "smoothquant+gptq": Calibration(SMOOTHQUANT, codes=True),
    "wanda": Calibration(prunes=True),
    "wanda+gptq": Calibration(codes=True, prunes=True),
    "outliers": Calibration(outliers=True),
    "outliers+gptq": Calibration(outliers=True, codes=True),
}
SCALED_FORMATS = {AWQ: "formats with groups, such as int4", SMOOTHQUANT: "w8a8 and w4a8"}
"""The formats of each method that chooses channel scales, in words."""


def scales_format(method: str, fmt: WeightFormat) -> bool:
    """Returns whether a method of channel scales is for this format: AWQ for weights in groups, SmoothQuant for
    activations with one scale for each token."""
    return fmt.kind != "fp" and not fmt.sparse and fmt.sums_whole_rows == (method == SMOOTHQUANT)


def rounds_inputs(fmt: WeightFormat) -> bool:
    """Returns whether a product with such a matrix rounds its inputs, and may do without some of their columns."""
    return not fmt.keeps_activations and not fmt.sparse
