"""Text to global batches: `text` -> `cache`, filled by `filling` and its processes, `builder` -> `batches`."""
