"""`python -m papers`."""

from papers.cli import app

app(prog_name="python -m papers")
