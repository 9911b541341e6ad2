"""`python -m torchtagi` is the `tagi` command; `torchrun -m torchtagi` starts it on several processes."""

from torchtagi.experiments.cli import main

main()
