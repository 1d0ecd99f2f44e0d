"""The paper's Algorithm 1 as published, its noise, and what the accountant makes of it."""
