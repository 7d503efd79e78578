"""`dml doctor`: one file a subject, each with what it looks at and what it makes of it."""
