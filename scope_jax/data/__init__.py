"""Rows of data: where they come from, how they are checked, which of them a step or an exam sees."""
