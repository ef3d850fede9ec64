"""Training: settings, the loop, evaluation, self-training, mini-batches and resuming."""
