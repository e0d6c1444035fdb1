"""Results as a person reads them: JSON to Markdown tables and figures. Everything here is made from the JSON alone."""
