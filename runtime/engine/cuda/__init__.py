"""Runs engines of target cuda, whose kernels are machine code, on an NVIDIA GPU: the C++ core does all of it."""
