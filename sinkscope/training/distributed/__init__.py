"""Several processes and devices that train one model."""
