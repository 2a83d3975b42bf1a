"""`python -m aswarm`: the command line, where its script is not on the path."""

from aswarm.cli import main

main()
