"""OpenAI's dialect: requests into ops of the wire, replies into answers and chunks."""
