"""Text to global batches: `text` -> `cache`, which `builder` fills beside the training -> `batches`."""
