"""Starting and ending process groups. :mod:`.local` is the dispatcher of this machine."""
