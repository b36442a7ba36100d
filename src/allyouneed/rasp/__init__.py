"""RASP, the language of what attention computes (Weiss, Goldberg and Yahav 2021): `docs/rasp.md`.

A program is a graph of s-ops and selectors (`graph.py`), written in Python (`api.py`) or in the language, and evaluated
on an input (`evaluate.py`). The language does not need torch.

    text -> syntax.py (grammar.lark) -> tree.py -> interpreter.py (values.py, operations.py) -> graph.py

`drawing/` draws programs, `compiler/` turns them into weights. The language imports neither.
"""
