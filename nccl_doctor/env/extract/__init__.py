"""One extractor per file format: text -> the variables it sets, with file and line."""
