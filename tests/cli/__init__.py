"""Tests of the command line. A package, so that its conftest has a name of its own."""
