"""`linformer fill-mask`."""

import json

from linformer_cli.settings import FillMaskSettings
from linformer_kit.inference.fill_mask import fill_mask


def main(settings: FillMaskSettings) -> None:
    """Print the likeliest tokens for each mask of the text, with probabilities."""
    guesses = fill_mask(settings.model, settings.text, top_k=settings.top_k)
    if settings.json:
        print(json.dumps(guesses, ensure_ascii=False, indent=2))
        return
    for number, candidates in enumerate(guesses, start=1):
        if len(guesses) > 1:
            print(f"mask {number}")
        for candidate in candidates:
            token = json.dumps(candidate["token"], ensure_ascii=False)  # quoted: white space is part of a token
            print(f"{candidate['probability']:7.2%}  {token}")
