"""The scikit-learn face of the methods."""
