"""`python -m epvi`: the same as the command `epvi`."""

from epvi.cli import main

main(prog_name="epvi")
