"""The run record: its schema, its names, and the table of a sweep's records."""
