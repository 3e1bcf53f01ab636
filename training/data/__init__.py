"""Text to token ids to global batches; a batch is a pure function of seed and position."""
