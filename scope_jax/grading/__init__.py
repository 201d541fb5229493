"""Graders: functions of answers, and the client of a judge."""
