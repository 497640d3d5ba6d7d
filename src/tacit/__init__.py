"""Differentially private, personalized federated learning."""
