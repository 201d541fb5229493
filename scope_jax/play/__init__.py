"""What every game uses: prompts and tools, turns, searches, judges, rewards, exams."""
