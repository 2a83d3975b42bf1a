"""The commands. Each has its own module or folder, uses the modules of the parent folder, and imports no other command."""
