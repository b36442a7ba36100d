"""Documents to translate: each format is one file that reads segments and writes their translations back."""
