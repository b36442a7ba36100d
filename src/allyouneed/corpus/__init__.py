"""Defects of corpora: find them, drop them, and split rows into training and held-out data.

    kinds.py      the kinds of defects, and what is dropped by default
    records.py    rows of a corpus with the lines that they came from
    survey.py     the first pass: sizes, duplicates, what is usual
    lengths.py, encoding.py, scripts.py, languages.py, near_copies.py    one kind of defect each
    examine.py    the second pass: the defects of each row
    outputs.py    files in the format of the input
    clean.py, split.py    folders of rows that are kept, dropped, or held out
    report.py     findings in words and as a page with pictures

Both passes stream. Memory is 8 to 16 bytes for each row, and what a sample and the held-out rows take.
"""
