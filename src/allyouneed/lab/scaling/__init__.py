"""Scaling laws: fit small runs, predict a larger one."""
