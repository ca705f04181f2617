"""`/v1/messages`: Anthropic's dialect, on the chat of OpenAI's."""
