"""The commands, each in its own module or folder. They share the modules of the parent folder, and do not import each other."""
