"""The facts of `tensorwright doctor`: what this machine has, and whether an engine can run on it."""
