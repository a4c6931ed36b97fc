"""Holds the passes, which turn the traced graph into the graph that a target takes."""

import tensorwright.plugins.registry  # noqa: F401  (this import puts the plugins' operations into the IR's table)
