"""Readers: from files and streams to lines, and from lines to typed events. Nothing here is a cause yet."""
