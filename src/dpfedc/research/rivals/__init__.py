"""The methods that the paper compares with; none of them has a proof of privacy."""
