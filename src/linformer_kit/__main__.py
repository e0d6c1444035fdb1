"""`python -m linformer_kit`: the command `linformer`, for launchers such as torchrun."""

from linformer_cli.cli import main

if __name__ == "__main__":
    main()
