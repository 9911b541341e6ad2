"""`python -m torchtagi` is the `tagi` command; `torchrun -m torchtagi` starts it on several processes."""

from torchtagi_command import main

main()
