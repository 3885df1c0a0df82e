"""`python -m privmarket` is the `privmarket` command."""

from privmarket.cli import main

main()
