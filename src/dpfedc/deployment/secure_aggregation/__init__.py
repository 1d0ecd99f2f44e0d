"""Secure aggregation: the sum of a round's uploads, and nothing of one site.

The protocol of Bonawitz et al. (2017) for a server that may deviate, with neighbours on a circle.
Pure functions and one object of secrets a round: the same in one process, in tests and over a
mailbox. Steps and numbers: docs/decisions/0014-secure-aggregation.md. What it guarantees:
docs/privacy-proof.md, section 15.
"""
