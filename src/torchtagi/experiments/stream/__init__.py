"""Streams: each row is predicted, then learned, and never seen again."""
