"""`python -m pd_units`: the command line."""

from pd_units.cli import main

main()
