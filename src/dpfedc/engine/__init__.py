"""The one loop over stages and rounds, and the sites that are simulated in this process."""
