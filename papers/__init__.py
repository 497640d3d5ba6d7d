"""Reproductions of the papers that Tacit implements: tables, figures and closed forms. Not part of the package."""
