"""The paper: its rivals, its variant as published, its theorems and experiments, and their data.

Nothing that a site runs imports from here.
"""
