"""Parts of `sinkscope generate`: tokens one after the other, their text, and what they cost."""
