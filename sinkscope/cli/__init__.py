"""The command line. Importing it is cheap: every command imports the rooms it needs when it runs."""

from sinkscope.cli.app import main

__all__ = ["main"]
