"""The report of a study as files: figure, table and page."""
