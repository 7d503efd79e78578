"""One step each, thin, around dml_core."""
