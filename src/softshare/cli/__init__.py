"""The command line: `app` has the list of commands, and each is imported when it is called."""

from softshare.cli.app import app, main

__all__ = ["app", "main"]
