"""Writes engines of target cuda: plans of GPU kernels, whose grids are expressions over the sizes of a step."""
