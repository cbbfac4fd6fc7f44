"""Programs: one file a task, with a function of its name that returns the program."""
