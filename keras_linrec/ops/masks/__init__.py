"""Masks: what a call is given, and its unmasked steps moved to the front."""
