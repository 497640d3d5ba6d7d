"""The bars of a real federation, on loopback, over Flower's own processes. `make federation` runs them all."""
