"""Starting and ending process groups."""
