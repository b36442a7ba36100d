"""Parts that several models share: stacks, encoders, decoders and their cells."""
