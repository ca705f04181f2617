"""Text and tokens: tokenizers, streams and stops, chat templates, quoting of what users wrote."""
