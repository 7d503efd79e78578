"""DVC: stages, data, remotes, and the restoring of damaged files."""
