"""Gradient norms over distance."""
