"""Kernels and what they share: functions of arrays that know no model."""
