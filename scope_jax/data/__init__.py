"""Rows of data: their sources and validation, and which of them a step or an exam uses."""
