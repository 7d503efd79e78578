"""The report of a study as files: answer, figures, tables and page."""
