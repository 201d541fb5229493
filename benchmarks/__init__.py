"""Measurements. A package, so that a `benchmarks` package installed by a dependency is not imported instead."""
