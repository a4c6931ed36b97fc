"""Puts the columns of rows in the order in which a product reads them."""
