"""Scaling laws: fit small runs and predict a larger one."""
