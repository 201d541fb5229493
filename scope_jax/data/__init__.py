"""Data rows: their sources and validation, and the selection of rows for a step or an exam."""
