"""What developers of the project run, and its users do not need."""
