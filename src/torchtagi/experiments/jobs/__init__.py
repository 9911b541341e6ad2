"""Things to be measured, by several processes, each once: what they found is kept in a file."""
