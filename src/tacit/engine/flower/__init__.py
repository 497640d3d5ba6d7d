"""The same methods on real machines: messages, a client's custody of its own state and ledger, the server's rounds.

Flower only carries bytes (`grid.py`, `app.py`); everything else here knows nothing of it and runs in one process, too.
"""
