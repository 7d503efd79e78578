"""What a project's files take on disk, by study and kind, and how it is freed."""
