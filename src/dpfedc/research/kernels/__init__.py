"""Arrays in, arrays out, for the rivals."""
