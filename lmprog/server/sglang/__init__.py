"""SGLang's native dialect: `/generate` and its neighbours, under its names and in its shapes."""
