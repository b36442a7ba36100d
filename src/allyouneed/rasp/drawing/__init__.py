"""Drawings of RASP programs. `program.py` draws, `files.py` writes .svg and .png."""
