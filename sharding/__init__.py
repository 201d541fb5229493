"""Meshes, weight declarations, sharding rules and collectives. Imports jax only."""
