"""The decoder: its description, its layers, its caches."""
