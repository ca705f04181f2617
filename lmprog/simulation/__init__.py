"""The whole core in one thread and in virtual time, on a fake model that reads its pages."""
