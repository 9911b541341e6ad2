"""Training and evaluating classifiers of images."""
