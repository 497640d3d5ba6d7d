"""`python -m tacit.cli`."""

from tacit.cli.main import main

main()
