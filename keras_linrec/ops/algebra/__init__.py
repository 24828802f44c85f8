"""Matrices and systems: eigenvalues, inverses, canonical and modal forms."""
