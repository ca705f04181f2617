"""`/v1/programs`: a whole program in one request, run where its prefixes are."""
