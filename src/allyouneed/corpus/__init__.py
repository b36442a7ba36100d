"""Corpora: find their defects, drop them, split rows into training and held-out data; pairs from texts alone.

    kinds.py      the kinds of defects, and what is dropped by default
    records.py    rows of a corpus with the lines that they came from
    survey.py     the first pass: sizes, duplicates, what is usual
    lengths.py, encoding.py, scripts.py, languages.py, near_copies.py    one kind of defect each
    examine.py    the second pass: the defects of each row
    outputs.py    files in the format of the input
    clean.py, split.py    folders of rows that are kept, dropped, or held out
    report.py     findings in words and as a page with pictures
    back_translation.py   pairs from texts in the target language, made by a reverse model
    growing_files.py      files that survive a kill

Both passes stream. Memory is 8 to 16 bytes for each row, and what a sample and the held-out rows take.
"""
