"""The root mean square norm of columns that several ranks have: each sums its squares, and all are added between."""
