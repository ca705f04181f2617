"""What a checkpoint says of itself: the documents of its folder, or the same made of a GGUF file's
metadata.

`checkpoint_documents` is the room's door, and says what a GGUF file's metadata means in the words
of the documents; `gguf_file` reads such files. Knows JSON and bytes;
knows no model, no token and no numbers of weights.
"""
