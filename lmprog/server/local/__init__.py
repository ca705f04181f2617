"""The dialects of servers that people run on their own machines: Ollama's and llama.cpp's."""
