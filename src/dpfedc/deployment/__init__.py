"""Sites elsewhere: what is agreed, what travels, and what a site does with it."""
