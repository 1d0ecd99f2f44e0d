"""Where sites run: all in one process, or each on a machine of its own."""
