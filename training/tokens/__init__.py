"""From documents to token ids: where text comes from, tokenizers, and the cache that grows while training reads it."""
