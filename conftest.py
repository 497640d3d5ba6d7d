"""What needs an extra is left out where the extra is not installed."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("flwr") else ["src/tacit/federation/*"]
