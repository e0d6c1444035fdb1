"""Reports: Markdown tables and figures, made from the JSON results alone; the machine, which results record; cards of
saved models."""
