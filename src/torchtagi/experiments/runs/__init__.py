"""Run folders: what was asked for, what was measured, where to go on from."""
