"""Reports: Markdown tables and figures, made from the JSON results alone; and README.md of saved models."""
