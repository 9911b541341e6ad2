"""From messages to posteriors: the update, what it needs to know of a step, the prior, the average."""
