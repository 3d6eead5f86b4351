"""Every setting, written once: sections, choices of backend and engine, settings of commands, files."""
