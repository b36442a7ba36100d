"""Experiments: many runs, statistics, charts and reports. One folder for each kind of experiment."""
