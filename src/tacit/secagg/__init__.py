"""Secure aggregation: a server learns the sum of its clients' integers modulo 2^b, and nothing else of them.

The protocol of Bonawitz et al. (2017) as values and pure functions, without transport: `client.answer` moves a member
one stage on, `server.open_round` gives the first stage of a server. docs/secure-aggregation.md has the protocol, what
it protects against and what not.
"""
