"""A process and its operating system: parent, open files, sockets, files that are read again."""
