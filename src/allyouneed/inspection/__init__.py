"""What a model does with one text: maps, probabilities, pictures, pages."""
