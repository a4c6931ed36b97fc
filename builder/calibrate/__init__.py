"""Chooses the codes of quantized weights by what the products of a text are, not by the weights alone."""
