"""Analyses of single papers on trained runs."""
