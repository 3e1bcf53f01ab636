"""Text to global batches; a batch is a pure function of seed and position.

`text` in the order in which it is read -> `cache`, token ids on disk, which `builder` fills beside the training ->
`batches`. `tokenizer` loads or trains one; `pins` keeps a Hub dataset and tokenizer at the commits of a first start.
"""
