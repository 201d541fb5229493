"""Shared by all games: prompts and tools, turns, searches, judges, rewards, exams."""
