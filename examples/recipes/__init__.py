"""The recipes of `reproduce.py`, and what carries them out."""
