"""`python -m omni_runtime` is the `omni` command."""

from omni_runtime.cli import main

main()
