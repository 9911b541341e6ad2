"""The paper's experiments and their comparison: the first user of the library, which knows nothing of them."""
