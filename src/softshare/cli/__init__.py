"""The command line. `app` lists the commands."""

from softshare.cli.app import app, main

__all__ = ["app", "main"]
