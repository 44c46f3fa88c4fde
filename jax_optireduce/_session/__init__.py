"""The session of a process: its settings, start, sockets, signals, and end."""
