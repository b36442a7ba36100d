"""Looking at models: attention maps and their pictures, scores on held-out data."""
