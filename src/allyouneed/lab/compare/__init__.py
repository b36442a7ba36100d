"""Several models at an equal budget, with error bars."""
