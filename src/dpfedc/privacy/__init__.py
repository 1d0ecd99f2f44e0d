"""The only door out of a site."""
