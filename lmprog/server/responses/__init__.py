"""`/v1/responses`: OpenAI's newer dialect, on the chat of the older one."""
