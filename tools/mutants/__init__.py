"""Mutants: programs with one change each, and which tests notice them (CONTRIBUTING.md, "Tests")."""
