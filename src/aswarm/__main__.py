"""`python -m aswarm`: the command line, for a system where the script `aswarm` is not on the path."""

from .cli import main

main()
