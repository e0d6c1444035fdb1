"""The command `linformer`: settings, parser and errors.

Nothing here imports torch or transformers, so that `linformer --help` starts fast; a command imports `linformer_kit`
once its arguments are parsed. The library takes its settings and errors from here.
"""
