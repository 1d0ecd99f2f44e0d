"""Clusters as people read them: in units, with error bars, and what sets each apart."""
