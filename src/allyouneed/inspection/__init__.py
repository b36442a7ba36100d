"""What a model does with one text: attention maps, token probabilities, pictures, pages."""
