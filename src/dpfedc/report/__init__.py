"""A page about one run, made from its record and from plain arrays."""
