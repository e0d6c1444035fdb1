"""The command line: a thin file for each command."""
