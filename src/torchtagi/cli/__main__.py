"""`python -m torchtagi.cli` is `tagi`."""

from torchtagi.cli import main

main()
