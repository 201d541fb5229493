"""Measurements. A package of this name, so that one that a dependency ships beside its own is not taken for it."""
