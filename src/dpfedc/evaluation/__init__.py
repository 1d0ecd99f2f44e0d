"""How good a clustering is: scores against known labels, and cost without them."""
