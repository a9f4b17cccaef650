"""What a cache, or a quantized one, does to a model: perplexity, recall, throughput, memory, side by side."""
