"""Scores of finished models on held-out data or on given files."""
