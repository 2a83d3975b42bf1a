"""`python -m aswarm`: the command line, if its script is not on the path."""

from .cli import main

main()
