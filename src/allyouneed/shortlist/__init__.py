"""Vocabulary shortlists: the table of target words that a source allows, and how to learn it."""
