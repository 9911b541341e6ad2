"""The methods that TAGI is compared with, on the same architectures, data and training loop."""
