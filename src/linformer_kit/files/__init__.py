"""The only modules that write or check folders: whole-or-not-there writes, manifests, output folders."""
