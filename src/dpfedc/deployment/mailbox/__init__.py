"""What carries bytes between the coordinator and the sites, and says whose they are.

A mailbox knows nothing of what the bytes mean. Requests are signed by the operator, answers by
their site. Both ends keep what must not be lost (the coordinator's folder, a site's ledger), so the
mailbox itself stores nothing: a server that is killed forgets, and is told again.
"""
