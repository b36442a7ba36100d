"""Checks that a folder is intact: manifest, checksums, tensors, scores."""
