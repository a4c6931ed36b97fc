"""Tracing: a checkpoint becomes a graph of one sequence. The only room of the builder that needs transformers."""

from tensorwright.builder.trace.export import trace, trace_for_engine

__all__ = ["trace", "trace_for_engine"]
