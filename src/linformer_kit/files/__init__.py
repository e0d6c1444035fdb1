"""Files and folders: atomic writes, manifests, output folders. No other module writes or checks folders."""
