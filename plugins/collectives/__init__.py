"""What ranks do together: sums and joins of values that each has a part of, and rows from stage to stage."""
