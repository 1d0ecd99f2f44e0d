"""`python -m dpfedc` is the command `dpfedc`."""

from dpfedc.cli import main

main()
