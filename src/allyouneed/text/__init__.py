"""Text and ids: tokenisers, codecs, files of lines and of ids."""
