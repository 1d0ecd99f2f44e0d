"""From public quantities to a plan: which stages, how many rounds, how much noise."""
