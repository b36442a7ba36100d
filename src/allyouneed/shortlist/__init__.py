"""Vocabulary shortlists: the target words that a source allows, and how to learn them."""
