"""A real federation: Flower's processes, keys, certificates, and the commands for people."""
