"""Experiments of the papers with trained models: recipes, one cell of a table, and pages."""
