"""What a checkpoint says of itself: the documents of its folder, or the same made of a GGUF file's
metadata.

`checkpoint_documents` is the room's door; `gguf_file` reads GGUF files, `gguf_documents`
says what their metadata means in the words of the documents. Knows JSON and bytes;
knows no model, no token and no numbers of weights.
"""
