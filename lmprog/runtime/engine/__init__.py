"""The engine: batches in, logits out, tokens sampled. The only room of the runtime with tensors.

`engine` chooses one. The rooms import downwards only: machine, model, native, adapters, attention,
torch_engine, device, sharded.
"""
