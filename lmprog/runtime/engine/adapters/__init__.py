"""LoRA adapters: files of PEFT's layout, read and checked, as low-rank parts of a model's products.

What a row's adapter adds to a product is `up @ (down @ x)`; engines compute that beside the product
of all rows. Knows numpy, files and names of weights; of engines it knows how the native one
reads them.
"""
