"""Sites on machines of their own: Flower carries the bytes, keys and certificates say whose.

Of Flower only the mailbox is used: the Fleet API, by which a site fetches requests and leaves
answers, and the store behind it. No code travels. Flower would send a bundle of code with a run
and start it at every site; here a site answers with the package that its own operator installed,
and never asks for a bundle. Flower's Control and Runtime APIs, which take code from anyone who can
reach them, are not served at all.
"""
