"""One file a change of the tables; each can be undone."""
