"""The engine: batches in, logits out, tokens sampled. The only room of the runtime with tensors."""
