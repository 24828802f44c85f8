"""Records of operations on structured systems, and their forms."""
