"""Parts rows in the columns that stay as they are and the rest, which is to be rounded."""
