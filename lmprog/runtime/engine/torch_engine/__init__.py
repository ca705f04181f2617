"""The torch engine: our decoder in plain torch, models of transformers, and the sampler that reads
their logits. The judge of the native engine; a device and several ranks take its weights and
decoder over.
"""
