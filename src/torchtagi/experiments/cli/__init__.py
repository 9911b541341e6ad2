"""The `tagi` command: parses, calls the experiments, shows."""
