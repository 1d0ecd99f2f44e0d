"""Stages of clustering that describe themselves, the methods made of them, and their plans."""
