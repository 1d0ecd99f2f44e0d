"""Who takes part in a round, and where sites run."""
