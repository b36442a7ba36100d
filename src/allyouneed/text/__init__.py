"""Text and ids: tokenisers, codecs, files of lines, ragged arrays of ids."""
