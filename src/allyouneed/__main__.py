"""`python -m allyouneed`: the same as `allyouneed`."""

from allyouneed.cli import main

main()
