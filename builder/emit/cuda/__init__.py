"""Writes engines of target cuda: plans of GPU kernels, whose grids and arguments are expressions over a step's sizes."""
